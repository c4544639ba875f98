/**
 * Runs that go on when ranks are lost, beside runs that are resumed by hand on the same numbers of ranks: metrics and weights must be
 * equal to the bit.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import process from "node:process";
import { processesOf } from "../../scripts/faults/members.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { type Ended, essence, flagsIn, metricLines, run, startRun } from "../train/runs.ts";

const TIMEOUT = { timeout: 120_000 };

/** Two ranks take 3 samples each; one takes 6, in micro-batches of 3. */
const BATCH = ["--global-batch", "6"];

/** Ranks that took steps up to `last`, each in `microBatches`. */
interface World {
  readonly ranks: number;
  readonly microBatches: number;
  readonly last: number;
}

/** The bytes of a run's model. */
function modelBytes(folder: TemporaryDirectory, out: string): Uint8Array {
  return readFileSync(folder.file(`${out}/model/model.safetensors`));
}

/** Takes the steps of `worlds` by hand, and asserts that a run has their metrics. */
async function equalsByHand(
  folder: TemporaryDirectory,
  steps: number,
  worlds: readonly World[],
  flags: readonly string[],
): Promise<void> {
  for (const { ranks, microBatches, last } of worlds) {
    const place = ["--out", folder.file("hand"), "--resume", "auto"];
    const length = ["--steps", String(steps), "--stop-after", String(last)];
    const division = ["--micro-batches", String(microBatches)];
    const { code, stderr } = await run(flagsIn(folder, ...flags, ...place, ...length, ...division), { ranks });
    assert.equal(code, 0, stderr);
  }
  assert.deepEqual(metricLines(folder).map(essence), metricLines(folder, "hand").map(essence));
}

/** Variables of a launcher that keeps state in a folder. */
function keepingIn(folder: TemporaryDirectory): Readonly<Record<string, string>> {
  folder.write("memory/.keep", "");
  return { FULLYSHARD_SHM_DIRECTORY: folder.file("memory") };
}

/** Runs to the end, through failures. */
async function elastic(
  folder: TemporaryDirectory,
  ranks: string,
  args: readonly string[],
  launcher: readonly string[],
): Promise<Ended> {
  const flags = ["--nproc-per-node", ranks, ...launcher];
  const ended = await run(flagsIn(folder, ...args), { env: keepingIn(folder), allowAll: true, flags });
  assert.equal(ended.code, 0, ended.stderr);
  const left = readdirSync(folder.file("memory")).filter((name) => name.startsWith("fullyshard_kept"));
  assert.deepEqual(left, [], "nothing stays in memory");
  return ended;
}

test("a run that loses one of two ranks goes on from memory, as if resumed by hand", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const launcher = ["--max-restarts", "1", "--redundancy", "1"];
  const { stderr } = await elastic(folder, "1:2", [...BATCH, "--steps", "6", "fault=1:4:kill"], launcher);
  const division = /: 2 \(1 micro-batch per rank\), 1 \(2 micro-batches per rank\)\n/;
  assert.match(stderr, /continues from memory, .* after each step\. World sizes that divide the global batch of 6/);
  assert.match(stderr, division);
  assert.match(stderr, /rank 1 \(pid \d+\) failed first: it was killed by SIGKILL/);
  assert.match(stderr, /fullyshard: going on with 1 of 2 ranks \(restart 1 of 1\)\n/);
  assert.match(stderr, /Resumed from memory at step 3/);
  // The fault is in step 4, before its state is kept.
  const worlds = [{ ranks: 2, microBatches: 1, last: 3 }, { ranks: 1, microBatches: 2, last: 6 }];
  await equalsByHand(folder, 6, worlds, BATCH);
  assert.deepEqual(modelBytes(folder, "out"), modelBytes(folder, "hand"));
});

longTest("three ranks become two, with a Worker that writes every third step", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  // 13 million elements with two states each: of a rank more than 32 MiB.
  const large = ["--global-batch", "12", "hidden=1024", "layers=1"];
  const launcher = ["--max-restarts", "1", "--redundancy", "1", "--redundancy-every", "3"];
  const { stderr } = await elastic(folder, "2:3", [...large, "--steps", "6", "fault=2:6:kill"], launcher);
  const kept = Number(/Resumed from memory at step (\d)/.exec(stderr)?.[1]);
  assert.equal(kept, 3, stderr);
  const worlds = [{ ranks: 3, microBatches: 1, last: 3 }, { ranks: 2, microBatches: 2, last: 6 }];
  await equalsByHand(folder, 6, worlds, large);
  assert.deepEqual(modelBytes(folder, "out"), modelBytes(folder, "hand"));
});

longTest("without copies in memory a run goes on from its last checkpoint", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = ["--steps", "5", "--save-every", "2", "fault=0:4:kill"];
  const { stderr } = await elastic(folder, "2", flags, ["--max-restarts", "1"]);
  assert.match(stderr, /continues from the last checkpoint\. World sizes that divide the global batch of 4: 2 /);
  assert.match(stderr, /fullyshard: going on with 2 ranks \(restart 1 of 1\)\n/);
  assert.match(stderr, /Resumed '.*checkpoint-2' at step 2/);
  await equalsByHand(folder, 5, [{ ranks: 2, microBatches: 1, last: 5 }], []);
});

longTest("a lost rank is let in again at a step's border, and no step is taken twice", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = [...BATCH, "--schedule", "constant"];
  const running = startRun(flagsIn(folder, ...flags, "--steps", "100000", "fault=1:2:kill"), {
    env: keepingIn(folder),
    allowAll: true,
    flags: [
      ...["--nproc-per-node", "1:2", "--max-restarts", "1"],
      ...["--redundancy", "1", "--redundancy-every", "3", "--rejoin-seconds", "2"],
    ],
  });
  await running.until(/fullyshard: going on with 2 ranks, as ranks come in\n[^]*Resumed from memory at step \d+\n/);
  for (const pid of processesOf(running.child).launchers) process.kill(pid, "SIGTERM");
  const { code, stderr } = await running.ended;
  assert.equal(code, 143, stderr);
  const left = Number(/Stopped after step (\d+) of 100000, as ranks come in/.exec(stderr)?.[1]);
  assert.match(stderr, new RegExp(`Resumed from memory at step ${left}\n`));
  // The fault is in step 2, of which nothing was kept: the rank that is left begins anew.
  const last = metricLines(folder).length;
  const worlds = [{ ranks: 1, microBatches: 2, last: left }, { ranks: 2, microBatches: 1, last }];
  await equalsByHand(folder, 100_000, worlds.filter((world) => world.last > 0), flags);
});

longTest("ranks under Deno with the launcher's permissions keep state in the temporary folder", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  folder.write("temporary/.keep", "");
  const env = { TMPDIR: folder.file("temporary") };
  const flags = ["--nproc-per-node", "1:2", "--max-restarts", "1", "--redundancy", "1"];
  const args = flagsIn(folder, "--steps", "4", "fault=1:2:exit=3");
  const { code, stderr } = await run(args, { env, runtime: "deno", flags });
  assert.equal(code, 0, stderr);
  assert.match(stderr, /state is kept in '.*temporary\/fullyshard_kept-.*': Deno lets only ranks with all permissions/);
  assert.match(stderr, /Resumed from memory at step 1\n/);
  assert.deepEqual(readdirSync(folder.file("temporary")).filter((name) => name.startsWith("fullyshard_kept")), []);
});

test(
  "a run without a state begins anew and says so, and one with a state is saved when no restart is left",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const flags = ["--nproc-per-node", "1", "--max-restarts", "2", "--redundancy", "1"];
    const args = flagsIn(folder, "--steps", "6", "fault=0:1:exit=4,0:3:throw,0:5:exit=9");
    const { code, stderr } = await run(args, { env: keepingIn(folder), allowAll: true, flags });
    assert.equal(code, 9, stderr);
    // The fault is in step 1, before its state is kept.
    const anew = /Training begins anew at step 1, as rank 0 is lost: no state of it was in memory or saved yet, /;
    assert.match(stderr, anew);
    assert.match(stderr, /so the step that was taken is taken again\n/);
    assert.match(
      stderr,
      /rank 0 \(pid \d+\) failed: Error: out of coffee\n[^]*going on with 1 rank \(restart 2 of 2\)\n/,
    );
    assert.match(stderr, /not restarted: --max-restarts 2 is used up\n/);
    assert.match(stderr, /saved the in-memory state as '.*out\/checkpoint-4'\n/);
    const resumed = await run(flagsIn(folder, "--steps", "5", "--resume", "auto"), { ranks: 1 });
    assert.match(resumed.stderr, /Resumed '.*checkpoint-4' at step 4/);
  },
);

longTest("a wrong setting is no reason to start ranks again", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run(flagsIn(folder, "--global-batch", "3"), { flags: ["--max-restarts", "1"] });
  assert.equal(code, 2, stderr);
  assert.doesNotMatch(stderr, /restart 1 of 1/);
});
