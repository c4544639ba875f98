/** Different numbers of ranks: other sums, but the same training. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { runCases, type WholeTrace } from "../../scripts/parity/traces.ts";
import type { Mode } from "../../scripts/parity/training.ts";
import { usualFirst } from "../support/share.ts";

const STEPS = 10;

/** Ten steps of one global batch of twelve micro-batches, however many ranks share it. */
async function trace(world: number, mode: Mode): Promise<WholeTrace> {
  const training = { mode, tied: false, microBatches: 12, steps: STEPS };
  const [found] = await runCases([{ name: `${mode} on ${world} ranks`, ranks: world, training }], "wasm");
  return found ?? assert.fail();
}

let reference: Promise<WholeTrace> | undefined;

/** Checks two lists of numbers by relative distance. */
function assertNear(actual: readonly number[], expected: readonly number[], what: string): void {
  assert.equal(actual.length, STEPS);
  actual.forEach((value, step) => {
    const error = Math.abs(value / (expected[step] ?? NaN) - 1);
    assert.ok(error <= 1e-5, `${what} of step ${step} differs by ${error}`);
  });
}

describe("world sizes", () => {
  const worlds = [[2, "fsdp-reshard"], [3, "fsdp-keep"], [4, "fsdp-reshard"], [3, "ddp"]] as const;
  for (const [world, mode] of usualFirst(worlds, (place) => place === 1)) {
    it(`agree on losses and norms: ${mode} on ${world} ranks and one rank alone`, { timeout: 60_000 }, async () => {
      reference ??= trace(1, "fsdp-reshard");
      const [alone, several] = [await reference, await trace(world, mode)];
      assert.ok((alone.losses.at(-1) ?? NaN) < (alone.losses[0] ?? NaN), "it learns");
      assertNear(several.losses, alone.losses, "the loss");
      assertNear(several.gradNorms, alone.gradNorms, "the norm");
    });
  }
});
