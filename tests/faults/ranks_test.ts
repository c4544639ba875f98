/**
 * Ranks that fail, vanish, never come, come late or do something else, as a user meets them. Bounds on time are generous:
 * what is tested is that nothing waits for its own timeout, which is ten minutes.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { RUNTIME } from "../support/rank_process.ts";
import type { FlightRecord } from "../../doors/comm.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { essence, flagsIn, metricLines, run, startAlone, startRanks } from "../train/runs.ts";

const TIMEOUT = { timeout: 60_000 };

const steps = ["--steps", "100"];

test("a rank that exits with 7 ends the run with 7, and the other names it and the collective", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run([...flagsIn(folder, ...steps), "fault=1:3:exit=7"]);
  assert.equal(code, 7, stderr);
  assert.match(
    stderr,
    /fullyshard: rank 0 \(pid \d+\) failed after it: CollectiveError: Rank 0 in exchange '(?:token count|stop requests)' .*: rank 1 died .* while/,
  );
  assert.match(stderr, /fullyshard: rank 1 \(pid \d+\) failed first: it ended with exit code 7/);
  assert.equal(metricLines(folder).length, 3);
});

test("a rank that is killed ends the run with 137, however many ranks report it", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run([...flagsIn(folder, ...steps), "fault=2:3:kill"], { ranks: 4, allowAll: true });
  assert.equal(code, 137, stderr);
  assert.match(stderr, /fullyshard: rank 2 \(pid \d+\) failed first: it was killed by SIGKILL/);
  assert.match(stderr, /failed after it: CollectiveError: Rank (0|1|3) in \w.* rank 2 died/);
});

test("ranks with no launcher stop by themselves when one of them is killed", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const ranks = startRanks(3, () => flagsIn(folder, "--steps", "100000", "--global-batch", "6"));
  await ranks[0]?.until(/step 3\//);
  const killed = performance.now();
  ranks[1]?.child.kill("SIGKILL");
  const [zero, one, two] = await Promise.all(ranks.map((rank) => rank.ended));
  assert.ok(performance.now() - killed < 5000, "they took more than 5 s to stop");
  assert.equal(one?.code, null);
  for (const ended of [zero, two]) {
    assert.equal(ended?.code, 1, ended?.stderr);
    assert.match(ended?.stderr ?? "", /CollectiveError: Rank [02] in .*rank 1 died/);
  }
});

test("a rank that throws tells why, and the others only that they stopped", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run([...flagsIn(folder, ...steps), "fault=1:3:throw"]);
  assert.equal(code, 1, stderr);
  assert.match(stderr, /fullyshard: rank 1 \(pid \d+\) failed first: Error: out of coffee\n/);
  assert.match(stderr, /fullyshard: rank 0 ended because of it\n/);
  assert.equal(stderr.split("coffee").length, 2, "it is told once");
});

test("a loop of one's own that throws is the cause, whichever rank ends first", TIMEOUT, async () => {
  const script = fileURLToPath(new URL("../train/scripts/loop.ts", import.meta.url));
  const { code, stderr } = await run([], { ranks: 4, allowAll: true, script });
  assert.equal(code, 1, stderr);
  // It is all that is shown: the cause with its place in the script, and no report of a rank that only followed.
  assert.match(
    stderr,
    /^fullyshard: rank 3 \(pid \d+\) failed first: RangeError: out of tea\n {4}at \S*loop\.ts:6:\d+\)?\nfullyshard: ranks 0, 1, 2 ended because of it\n$/,
  );
});

for (const when of ["first", "last"]) {
  test(`a model that rank 0 alone saves ${when} tells that every rank must`, TIMEOUT, async () => {
    using folder = temporaryDirectory();
    const script = fileURLToPath(new URL("../train/scripts/save_alone.ts", import.meta.url));
    const { code, stderr } = await run([folder.file("model"), when], { allowAll: true, script });
    assert.equal(code, 1, stderr);
    assert.match(
      stderr,
      /fullyshard: rank .*CollectiveError: .*together 'save '.*model''.*must make the same collectives in the same order: look for one inside an 'if'/,
    );
  });
}

test("the rank that lacks a permission is named, not one that waited for it", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const denoArgs = "--no-prompt --no-check --allow-ffi --allow-read --allow-env";
  const { code, stderr } = await run(flagsIn(folder, ...steps, "--global-batch", "6"), {
    runtime: "deno",
    ranks: 3,
    denoArgs,
  });
  assert.equal(code, 1, stderr);
  assert.match(
    stderr,
    /^fullyshard: rank 0 \(pid \d+\) failed first: FileError: Cannot make directory '.*out': .*\nfullyshard: ranks 1, 2 ended because of it\n$/,
  );
});

test("with no launcher, every rank tells the cause", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const ranks = startRanks(2, () => [...flagsIn(folder, ...steps), "fault=1:3:throw"]);
  const [zero, one] = await Promise.all(ranks.map((rank) => rank.ended));
  assert.deepEqual([zero?.code, one?.code], [1, 1]);
  assert.match(
    zero?.stderr ?? "",
    /error \[rank 0\] CollectiveError: .*rank 1 stopped all ranks: Error: out of coffee/,
  );
  assert.match(one?.stderr ?? "", /error \[rank 1\] Error: out of coffee/);
});

for (const [rank, missing] of [[0, 1], [1, 0]]) {
  test(`rank ${rank} does not wait for ever for rank ${missing}, which never starts`, TIMEOUT, async () => {
    using folder = temporaryDirectory();
    const env = { RANK: String(rank), WORLD_SIZE: "2", FULLYSHARD_RUN_ID: folder.path };
    const { code, stderr } = await startAlone(flagsIn(folder, "--join-timeout-seconds", "1"), { env }).ended;
    assert.equal(code, 1, stderr);
    assert.match(stderr, new RegExp(`RendezvousError: Rank ${missing} of 2 did not start within 1 s`));
  });
}

longTest("a rank that is late but lives is reported, and the run goes on", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const late = [...flagsIn(folder, "--steps", "4", "--report-seconds", "0.3"), "fault=1:2:sleep=1.5"];
  const { code, stderr } = await run(late);
  assert.equal(code, 0, stderr);
  const report =
    /\[rank0\] warn +Rank 0 has waited 0\.\d s in exchange '(?:token count|stop requests)' .* for rank 1 .*, which is alive/g;
  assert.equal([...stderr.matchAll(report)].length, 1, stderr);
  assert.equal(metricLines(folder).length, 4);
});

longTest("a rank that lives but does not come ends the run at the timeout", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = [...flagsIn(folder, ...steps, "--timeout-seconds", "1"), "fault=1:2:hang"];
  const { code, stderr } = await run(flags);
  assert.equal(code, 1, stderr);
  assert.match(
    stderr,
    /Rank 0 in exchange '(?:token count|stop requests)' .*: waited 1 s .*rank 1 \(awaited\) was last seen after call/,
  );
  assert.match(stderr, /fullyshard: stopped rank 1/);
});

longTest("the timeout comes from the environment where no flag gives it", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const env = { FULLYSHARD_TIMEOUT_SECONDS: "1" };
  const { code, stderr } = await run([...flagsIn(folder, ...steps), "fault=1:2:hang"], { env });
  assert.equal(code, 1, stderr);
  assert.match(stderr, /waited 1 s/);
});

/** The records of a run that failed, as they were written into a folder. */
function flightRecords(folder: TemporaryDirectory): (FlightRecord & { readonly reason: string })[] {
  const names = readdirSync(folder.path).filter((name) => name.startsWith("fullyshard-flight-"));
  return names.map((name) => JSON.parse(readFileSync(folder.file(name), "utf8")));
}

test("a rank that dies leaves the last calls of all ranks, with what the others wait in", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const env = { FULLYSHARD_FLIGHT_DIRECTORY: folder.path };
  const { code, stderr } = await run([...flagsIn(folder, ...steps), "fault=2:3:kill"], {
    ranks: 4,
    allowAll: true,
    env,
  });
  assert.equal(code, 137, stderr);
  const [record] = flightRecords(folder);
  assert.ok(record !== undefined && record.ranks.length === 4);
  assert.match(record.reason, /^rank 2 died/);
  assert.equal(record.ranks[2]?.state, "dead");
  const missing = record.ranks[2]?.calls.at(-1)?.sequence ?? NaN;
  for (const { rank, calls } of record.ranks) {
    assert.ok(rank === 2 || (calls.at(-1)?.sequence ?? 0) >= missing);
    assert.ok(
      calls.length > 20 && calls.every(({ sequence }, i) => i === 0 || sequence === (calls[i - 1]?.sequence ?? 0) + 1),
    );
    const gather = calls.find(({ kind, phase }) => kind === "gather" && phase === "backward");
    assert.ok(gather !== undefined && gather.unit.startsWith("model.layers.") && gather.bytes > 0 && gather.step > 0);
  }
  assert.match(stderr, /warn +The last calls of all ranks are in '.*fullyshard-flight-rank\d-\d+\.json'/);
});

longTest(
  "the last calls are kept in the output folder by ranks under Deno with the launcher's permissions, and are moved with it",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const env = { FULLYSHARD_FLIGHT_DIRECTORY: "" };
    const flags = flagsIn(folder, ...steps);
    const { code, stderr } = await run([...flags, "fault=1:2:exit=3"], { env, runtime: "deno" });
    assert.equal(code, 3, stderr);
    assert.match(stderr, /warn +The last calls of all ranks are in '.*out\/flight-rank0\.json'/);
    const record: FlightRecord & { readonly reason: string } = JSON.parse(
      readFileSync(folder.file("out/flight-rank0.json"), "utf8"),
    );
    assert.match(record.reason, /^rank 1 died/);
    const next = await run([...flags, "--set-aside"], { runtime: "deno" });
    assert.equal(next.code, 0, next.stderr);
    assert.deepEqual(readdirSync(folder.file("out")).filter((name) => name.startsWith("flight")), []);
    assert.ok(readdirSync(folder.file("out-1")).includes("flight-rank0.json"));
  },
);

test("ranks that call different collectives stop, and both calls are named", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const env = { FULLYSHARD_FLIGHT_DIRECTORY: folder.path };
  const { code, stderr } = await run([...flagsIn(folder, ...steps), "fault=1:2:other"], { env });
  const last = flightRecords(folder).flatMap(({ ranks }) => ranks.map(({ calls }) => calls.at(-1)?.unit));
  assert.ok(last.includes("a call of my own"), last.join());
  assert.equal(code, 1, stderr);
  assert.match(
    stderr,
    /ranks make different calls: rank 0 calls exchange '(?:token count|stop requests)'.*; rank 1 calls barrier 'a call of my own'/,
  );
});

/** The call that each rank reported to wait in, by rank. */
function waitsIn(stderr: string): Map<number, string> {
  const lines = stderr.matchAll(/^\[rank(\d)\] warn +Rank \1 waits in (.*)$/gm);
  const told = [...lines].map(([, rank, text = ""]) => [Number(rank), text] as const);
  assert.equal(new Set(told.map(([rank]) => rank)).size, told.length, `a rank told it twice:\n${stderr}`);
  return new Map(told);
}

/** A call with all that is told of it. */
const CALL =
  /^(gather|reduce-scatter|write|all-reduce|exchange) '[\w. ]+' (\(.*bytes?\) )?\(group 'world', step 4, call \d+\): /;

test(
  "of three ranks that are left by a fourth in a gather, each tells what it waits in and who is not there",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const flags = [...flagsIn(folder, ...steps), "fault=2:3:kill-in=gather"];
    const { code, stderr } = await run(flags, { ranks: 4, allowAll: true });
    assert.equal(code, 137, stderr);
    const told = waitsIn(stderr);
    assert.deepEqual([...told.keys()].sort(), [0, 1, 3], stderr);
    for (const text of told.values()) {
      assert.match(text, CALL);
      assert.match(text, /rank 2 died and was last seen (in|after) call \d+, [\w-]+ '.*' .*of step 4$/);
    }
  },
);

test(
  "ranks that call different collectives each tell which, and who is in a different collective",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const { code, stderr } = await run([...flagsIn(folder, ...steps), "fault=1:2:other"]);
    assert.equal(code, 1, stderr);
    const told = waitsIn(stderr);
    assert.deepEqual([...told.keys()].sort(), [0, 1], stderr);
    assert.match(
      told.get(1) ?? "",
      /^barrier 'a call of my own' \(group 'world', step 2, call \d+\): rank 0 is in a different collective/,
    );
    assert.match(
      told.get(0) ?? "",
      /^exchange '.*' \(group 'world', step 2, call \d+\): rank 1 is in a different collective .*'a call of my own'/,
    );
  },
);

longTest("a rank that is later than the timeout is told of by each of the others", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, ...steps, "--global-batch", "6", "--report-seconds", "0.3", "--timeout-seconds", "1.5");
  const { code, stderr } = await run([...flags, "fault=1:2:hang"], { ranks: 3 });
  assert.equal(code, 1, stderr);
  const late = [
    ...stderr.matchAll(/Rank (\d) has waited 0\.\d s in .* \(group 'world', step 2, call \d+\) for rank 1/g),
  ];
  assert.deepEqual(late.map(([, rank]) => rank).sort(), ["0", "2"], stderr);
  const told = waitsIn(stderr);
  assert.deepEqual([...told.keys()].sort(), [0, 2], stderr);
  for (const text of told.values()) {
    assert.match(
      text,
      /^exchange '.*' \(group 'world', step 2, call \d+\): rank 1 has not reached it and was last seen after call/,
    );
  }
});

test("a rank that fails with a reason of its own leaves nothing to tell of waiting", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { stderr } = await run([...flagsIn(folder, ...steps), "fault=1:3:throw"]);
  assert.equal(waitsIn(stderr).size, 0, stderr);
});

test("a learning rate that is much too high ends with the step and a parameter's name", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run(flagsIn(folder, ...steps, "--learning-rate", "1e9"));
  assert.equal(code, 1, stderr);
  assert.match(
    stderr,
    // Both ranks find it; the one that is faster may stop the other before that one says so.
    /fullyshard: rank(s 0, 1 failed| \d \(pid \d+\) failed first): NonFiniteError: (Loss|Gradient norm) is \S+ at step \d+: .*'(model\.|lm_head)[\w.]+'.*not finite/,
  );
});

test("a weight that becomes NaN is named with the step", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run([...flagsIn(folder, ...steps), "fault=*:3:poison"]);
  assert.equal(code, 1, stderr);
  assert.match(stderr, /Loss is NaN at step 4: the weights of 'model\.layers\.1\.mlp\.up_proj\.weight' are the first/);
  assert.equal(metricLines(folder).length, 3, "the step that failed has no line");
});

test("with no launcher, a signal to one rank saves and ends all, and leaves none behind", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const ranks = startRanks(2, () => flagsIn(folder, "--steps", "100000"));
  await ranks[0]?.until(/step 2\//);
  process.kill(ranks[1]?.child.pid ?? 0, "SIGTERM");
  const [zero, one] = await Promise.all(ranks.map((rank) => rank.ended));
  assert.deepEqual([zero?.code, one?.code], [143, 143]);
  assert.match(zero?.stderr ?? "", /Saved '.*checkpoint-\d+'\n.*Stopped after step \d+ of 100000, as SIGTERM came/);
});

test("a rank under Bun and one under Deno train together, to the numbers of two alike", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const run = async (out: string, runtimes: readonly ("bun" | "deno")[]): Promise<string[]> => {
    const env = { WORLD_SIZE: "2", FULLYSHARD_RUN_ID: crypto.randomUUID() };
    const ranks = runtimes.map((runtime, rank) => {
      const flags = flagsIn(folder, "--steps", "4", "--out", folder.file(out));
      return startAlone(flags, { runtime, env: { ...env, RANK: String(rank) } }).ended;
    });
    for (const { code, stderr } of await Promise.all(ranks)) assert.equal(code, 0, stderr);
    return metricLines(folder, out).map(essence);
  };
  assert.deepEqual(await run("mixed", ["bun", "deno"]), await run("alike", [RUNTIME, RUNTIME]));
});
