/** Expert parallelism in the trainer: the losses of a run without it, and checkpoints between runs that divide experts and runs that do not. @module */
import assert from "node:assert/strict";
import { after } from "node:test";
import { longTest, sharedTest } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { flagsIn, losses } from "./runs.ts";

const TIMEOUT = { timeout: 120_000 };
const kept = keepRanks();
after(() => kept[Symbol.dispose]());

/** Trains a mixture of four experts; the losses of its steps. */
async function lossesOf(
  folder: TemporaryDirectory,
  ranks: number,
  out: string,
  ...flags: readonly string[]
): Promise<readonly number[]> {
  const sizes = ["experts=4", "--steps", "6", "--global-batch", "8", "--out", folder.file(out)];
  const ended = await kept.run(flagsIn(folder, ...sizes, ...flags), { ranks });
  assert.equal(ended.code, 0, ended.stderr);
  return [...losses(folder, out).values()];
}

function assertNear(found: readonly number[], expected: readonly number[]): void {
  assert.equal(found.length, expected.length);
  for (const [i, loss] of found.entries()) {
    const wanted = expected[i] ?? NaN;
    assert.ok(Math.abs(loss - wanted) <= 1e-5 * wanted, `step ${i + 1}: ${loss}, ${wanted}`);
  }
}

// The loss that balances the routers is of a rank's own tokens, so runs that are compared have as many ranks.

sharedTest(
  "--ep-size trains as without it, and goes on from checkpoints of runs without it, and back",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const saves = ["--save-every", "3", "--keep-last", "9"];
    const shared = await lossesOf(folder, 2, "shared", ...saves);
    assertNear(await lossesOf(folder, 2, "divided", "--ep-size", "2", ...saves, "--check-replicas", "2"), shared);
    const from = (run: string): readonly string[] => ["--resume", `${folder.file(run)}/checkpoint-3`];
    assertNear(await lossesOf(folder, 2, "on-shared", "--ep-size", "2", ...from("shared")), shared.slice(3));
    assertNear(await lossesOf(folder, 2, "on-divided", ...from("divided")), shared.slice(3));
  },
);

longTest("--ep-size trains as without it on 4 ranks, also in bfloat16", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const shared = await lossesOf(folder, 4, "shared");
  for (const size of ["2", "4"]) assertNear(await lossesOf(folder, 4, `of-${size}`, "--ep-size", size), shared);
  const narrow = ["--precision", "bfloat16", "--stop-after", "1"];
  const [first = NaN] = await lossesOf(folder, 4, "narrow", ...narrow);
  assertNear(await lossesOf(folder, 4, "narrow-divided", "--ep-size", "2", ...narrow), [first]);
});
