/** Combinations of plan, reshard mode, checkpointing, offload, precision, accumulation, mesh and resume: each two values once. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { axisGroups, combinations, pairwise } from "../../scripts/parity/axes.ts";
import { trainAlike } from "../support/parity.ts";
import { usualFirst } from "../support/share.ts";

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
    assert.equal(all.length, 7296);
    assert.ok(chosen.length < 30, `${chosen.length}`);
    assert.equal(new Set(all.map((one) => JSON.stringify(one))).size, all.length);
    const square = [0, 1].flatMap((a) => [0, 1].flatMap((b) => [0, 1].map((c) => ({ a, b, c }))));
    assert.equal(pairwise(square).length, 4);
  });
});

describe("training", () => {
  for (
    const cases of axisGroups(2, usualFirst(pairwise(combinations()), (place) => place % 2 === 0)).filter((
      { length },
    ) => length > 1)
  ) {
    const others = cases.slice(1).map(({ name }) => name).join("; ");
    it(`gives the bits of ${cases[0]?.name} in combinations: ${others}`, { timeout: 240_000 }, async () => {
      await trainAlike(cases);
    });
  }
});
