/**
 * Runs that go on when ranks are lost, beside runs that are resumed by hand on the same numbers of ranks: metrics and weights must be
 * equal to the bit.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { sharedTest as test } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { type Ended, essence, flagsIn, metricLines, run } from "../train/runs.ts";

const TIMEOUT = { timeout: 120_000 };

/** Three ranks take 12 samples as 4 each; two as 6 each, in micro-batches of 3. */
const BATCH = ["--global-batch", "12"];

/** The bytes of a run's model. */
function modelBytes(folder: TemporaryDirectory, out: string): Uint8Array {
  return readFileSync(folder.file(`${out}/model/model.safetensors`));
}

/** Asserts that a run in `out` is the run that steps of `worlds` make by hand: a number of ranks, its micro-batches, and its last step. */
async function equalsByHand(
  folder: TemporaryDirectory,
  steps: number,
  worlds: readonly { readonly ranks: number; readonly microBatches: number; readonly last: number }[],
  more: readonly string[] = [],
): Promise<void> {
  const hand = ["--out", folder.file("hand"), "--save-every", "1", "--keep-last", "2"];
  for (const { ranks, microBatches, last } of worlds) {
    const flags = [...BATCH, "--steps", String(steps), "--stop-after", String(last), ...hand, ...more];
    const division = ["--micro-batches", String(microBatches), "--resume", "auto"];
    const { code, stderr } = await run(flagsIn(folder, ...flags, ...division), { ranks });
    assert.equal(code, 0, stderr);
  }
  assert.deepEqual(metricLines(folder).map(essence), metricLines(folder, "hand").map(essence));
  assert.deepEqual(modelBytes(folder, "out"), modelBytes(folder, "hand"));
}

/** Runs to the end, through failures. */
async function elastic(
  folder: TemporaryDirectory,
  ranks: string,
  flags: readonly string[],
  launcher: readonly string[],
): Promise<Ended> {
  const env = { FULLYSHARD_SHM_DIRECTORY: folder.file("memory") };
  folder.write("memory/.keep", "");
  const ended = await run(flagsIn(folder, ...flags), {
    env,
    allowAll: true,
    flags: ["--nproc-per-node", ranks, ...launcher],
  });
  assert.equal(ended.code, 0, ended.stderr);
  assert.deepEqual(readdirSync(folder.file("memory")), [".keep"], "nothing stays in memory");
  return ended;
}

test("a run that loses one of three ranks goes on from memory with two, as if resumed by hand", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const flags = [...BATCH, "--steps", "6", "fault=1:4:kill"];
  const { stderr } = await elastic(folder, "2:3", flags, ["--max-restarts", "1", "--redundancy", "1"]);
  assert.match(
    stderr,
    /goes on from memory, .* after each step\. A global batch of 12 can be divided among 3 \(1 micro-batch of a rank\), 2 \(2 /,
  );
  assert.match(stderr, /rank 1 \(pid \d+\) failed first: it was killed by SIGKILL/);
  assert.match(stderr, /fullyshard: going on with 2 of 3 ranks \(restart 1 of 1\)\n/);
  assert.match(stderr, /Resumed from memory at step 3/);
  // The fault is in step 4, before its state is kept.
  await equalsByHand(folder, 6, [{ ranks: 3, microBatches: 1, last: 3 }, { ranks: 2, microBatches: 2, last: 6 }]);
});
