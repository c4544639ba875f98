/** Combinations of plan, reshard mode, checkpointing, offload, precision, accumulation, mesh and resume: each two values once. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { axisGroups, combinations, pairwise } from "../../scripts/parity/axes.ts";
import { compare, runCase } from "../../scripts/parity/traces.ts";

describe("pairwise()", () => {
  it("holds every two values that go together, in few combinations", () => {
    const all = combinations();
    const chosen = pairwise(all);
    const pairsOf = (list: readonly object[]): ReadonlySet<string> =>
      new Set(list.flatMap((one) => {
        const values = Object.entries(one).map((entry) => JSON.stringify(entry));
        return values.flatMap((a) => values.map((b) => `${a} ${b}`));
      }));
    assert.deepEqual(pairsOf(chosen), pairsOf(all));
    assert.equal(all.length, 3648);
    assert.ok(chosen.length < 30, `${chosen.length}`);
    assert.equal(new Set(all.map((one) => JSON.stringify(one))).size, all.length);
    const square = [0, 1].flatMap((a) => [0, 1].flatMap((b) => [0, 1].map((c) => ({ a, b, c }))));
    assert.equal(pairwise(square).length, 4);
  });
});

describe("training", () => {
  for (const [reference, ...others] of axisGroups(2, pairwise(combinations()))) {
    assert.ok(reference !== undefined);
    it(`gives the bits of ${reference.name} in ${others.length} combinations`, { timeout: 240_000 }, async () => {
      const expected = await runCase(reference.name, reference.ranks, reference.training, "wasm");
      for (const { name, ranks, training } of others) {
        const pair = compare(expected, await runCase(name, ranks, training, "wasm"));
        assert.deepEqual(pair, { ...pair, max_ulp_loss: 0, max_ulp_grad_norm: 0, max_ulp_weights: 0 });
      }
    });
  }
});
