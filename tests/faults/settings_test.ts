/** Settings that are wrong, as a user meets them: every process ends with code 2 and says what is wrong. @module */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { after } from "node:test";
import { longTest, sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "../train/kept_ranks.ts";
import { flagsIn, run, startAlone, startRanks } from "../train/runs.ts";

const TIMEOUT = { timeout: 60_000 };
const kept = keepRanks();
after(() => kept[Symbol.dispose]());

const wrong: readonly (readonly [what: string, flags: readonly string[], said: readonly RegExp[]])[] = [
  ["a mistyped flag", ["--learning-rte", "0.1"], [/--learning-rte: .* Did you mean '--learning-rate'\?/]],
  ["two wrong flags at once", ["--stepz", "3", "--seed", "x"], [
    /Did you mean '--steps'\?/,
    /--seed: expected .*got 'x'/,
  ]],
  ["an unknown flag", ["--quantum"], [/--quantum: expected a known flag, got '--quantum'\n/]],
  ["a batch that ranks cannot share", ["--global-batch", "3"], [/globalBatch: expected a multiple of 2 .*got 3/]],
  ["samples longer than the model", ["--sequence-length", "65"], [/sequenceLength: expected at most 64.*got 65/]],
  ["data that is not there", ["--data", "/no/such/*.txt"], [/\/no\/such\/\*\.txt/]],
  ["a configuration file that is not there", ["--config", "no.yaml"], [
    /--config: expected a readable file.*'no\.yaml'/,
  ]],
];

for (const [place, [what, flags, said]] of wrong.entries()) {
  test(`a run with ${what} is refused`, TIMEOUT, async () => {
    using folder = temporaryDirectory();
    // The launcher tells once what every rank found: seen in two cases.
    const isLaunched = place % 4 === 0;
    const ended = await (isLaunched ? run : kept.run)([...flagsIn(folder), ...flags]);
    assert.equal(ended.code, 2, ended.stderr);
    for (const pattern of said) assert.match(ended.stderr, pattern);
    assert.doesNotMatch(ended.stderr, /^ +at /m, "a user's mistake shows no stack");
    assert.ok(!existsSync(folder.file("out")), "nothing is left of a run that did not begin");
    const times = ended.stderr.match(/^error (\[rank \d\] )?Configuration has \d problems?:$/mg)?.length;
    assert.equal(times, isLaunched ? 1 : 2, ended.stderr);
    assert.doesNotMatch(ended.stderr, /fullyshard:|ConfigError/);
  });
}

longTest("a wrong setting reads the same with the launcher as without", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--stepz", "3", "--seed", "x");
  const alone = await startAlone(flags).ended;
  assert.match(alone.stderr, /^error Configuration has 2 problems:\n {8}--stepz: /);
  for (const ranks of [1, 3]) assert.equal((await run(flags, { ranks })).stderr, alone.stderr);
});

test("a configuration file with a mistyped key is refused with the place of it", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const file = folder.write("run.yaml", "steps: 3\nmodel: x\nwarmup_step: 1\n");
  const { code, stderr } = await startAlone([...flagsIn(folder), "--config", file]).ended;
  assert.equal(code, 2, stderr);
  assert.match(stderr, /run\.yaml:3:1: warmup_step: .*Did you mean 'warmupSteps'|run\.yaml:3:1: .*warmupSteps/);
});

const environments: readonly (readonly [env: Readonly<Record<string, string>>, said: RegExp])[] = [
  [{ RANK: "0" }, /WORLD_SIZE: expected to be set, as RANK is, got nothing/],
  [{ WORLD_SIZE: "2" }, /RANK: expected to be set, as WORLD_SIZE is, got nothing/],
  [{ RANK: "2", WORLD_SIZE: "2" }, /RANK: expected below WORLD_SIZE = 2, got 2/],
  [{ RANK: "-1", WORLD_SIZE: "2" }, /RANK: expected a whole number from 0, got "-1"/],
  [{ RANK: "0", WORLD_SIZE: "two" }, /WORLD_SIZE: expected a whole number from 1, got "two"/],
  [{ RANK: "0", WORLD_SIZE: "2", LOCAL_RANK: "3" }, /LOCAL_RANK: expected below WORLD_SIZE = 2, got 3/],
  [{ RANK: "0", WORLD_SIZE: "2", LOCAL_WORLD_SIZE: "4" }, /LOCAL_WORLD_SIZE: expected at most WORLD_SIZE = 2, got 4/],
  [{ RANK: "0", WORLD_SIZE: "2", MASTER_PORT: "http" }, /MASTER_PORT: expected a whole number.*got "http"/],
];

for (const [env, said] of usualFirst(environments, (place) => place % 4 === 0)) {
  const text = Object.entries(env).map((pair) => pair.join("=")).join(" ");
  test(`a rank started with ${text} is refused`, TIMEOUT, async () => {
    using folder = temporaryDirectory();
    const { code, stderr } = await startAlone(flagsIn(folder), { env }).ended;
    assert.equal(code, 2, stderr);
    assert.match(stderr, said);
  });
}

test("ranks that disagree about the world's size are refused", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const id = crypto.randomUUID();
  const ranks = ["2", "3"].map((world, rank) => {
    const env = { RANK: String(rank), WORLD_SIZE: world, FULLYSHARD_RUN_ID: id };
    return startAlone(flagsIn(folder, "--join-timeout-seconds", "20"), { env }).ended;
  });
  for (const { code, stderr } of await Promise.all(ranks)) {
    assert.equal(code, 1, stderr);
    assert.match(stderr, /rank 0 was started with a world size of 2, rank 1 with 3/);
  }
});

test("ranks that were started with different settings are refused, each with both values", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const ranks = startRanks(2, (rank) => {
    return flagsIn(folder, "--seed", String(rank), "--strategy", rank === 0 ? "fsdp" : "ddp");
  });
  for (const { code, stderr } of await Promise.all(ranks.map((rank) => rank.ended))) {
    assert.equal(code, 2, stderr);
    assert.match(stderr, /seed: expected the same on all ranks, got 0 on rank 0, 1 on rank 1/);
    assert.match(stderr, /strategy: expected the same on all ranks, got "fsdp" on rank 0, "ddp" on rank 1/);
  }
});

for (const fault of ["config", "nonfinite"]) {
  test(`what one rank alone finds wrong is told by that rank (${fault})`, TIMEOUT, async () => {
    using folder = temporaryDirectory();
    const { stderr } = await run([...flagsIn(folder, "--steps", "3"), `fault=1:2:${fault}`]);
    assert.match(stderr, /^fullyshard: rank 1 \(pid \d+\) failed first: [^]*only here/m);
    assert.match(stderr, /^fullyshard: rank 0 ended because of it$/m);
  });
}

longTest("a rank that is started twice is refused, and the run goes on", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const ranks = startRanks(2, () => [...flagsIn(folder, "--steps", "3"), "fault=0:1:sleep=2"], {
    env: { FULLYSHARD_RUN_ID: folder.path },
  });
  await ranks[0]?.until(/step 1\//);
  const env = { RANK: "1", WORLD_SIZE: "2", FULLYSHARD_RUN_ID: folder.path };
  const twin = await startAlone(flagsIn(folder, "--join-timeout-seconds", "20"), { env }).ended;
  assert.equal(twin.code, 1, twin.stderr);
  assert.match(twin.stderr, /Rank 1 of this run is a live process already/);
  for (const { code, stderr } of await Promise.all(ranks.map((rank) => rank.ended))) assert.equal(code, 0, stderr);
});
