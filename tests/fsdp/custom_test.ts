/** Collectives and hooks that users put in. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { valuesOf, world } from "../support/world.ts";
import { replaceCollectives, stepInBackward } from "./custom_ranks.ts";
import { sharedTest as it } from "../support/share.ts";

for (const over of ["loopback", "shm"] as const) {
  describe(`custom collectives over ${over}`, () => {
    it("move what they are set for, and give the same bits", { timeout: 60_000 }, async () => {
      const run = 4 * 256; // 20 · 20 + 20 elements, padded to two runs of whole blocks
      for (const { calls, same, reduced, doubled } of valuesOf(await world(2, replaceCollectives, { over }))) {
        const step = [
          ...[`gather layers.0 forward ${run}`, `gather layers.0 backward ${run}`],
          "reduce layers.0 backward 2",
        ];
        assert.deepEqual(calls, [...step, ...step], "and no more when they were given back");
        assert.ok(same);
        assert.deepEqual(reduced, [256, 256]);
        assert.ok(doubled, "each backward's own sum is handed over, before it is added");
      }
    });
  });
}

describe("registerPostAccumulateGradHook()", () => {
  for (const mode of ["plain", "replicate", "fullyShard"] as const) {
    it(`steps inside the backward as after it, ${mode}`, async () => {
      const all = ["head.bias", "head.weight", "layers.0.linear.bias", "layers.0.linear.weight"];
      for (
        const { told, same, left } of valuesOf(await world(mode === "plain" ? 1 : 2, stepInBackward, { data: mode }))
      ) {
        assert.deepEqual(told.map((list) => list.toSorted()), [
          ...[all, mode === "plain" ? all : [], all, ["head.bias", "head.weight"]],
        ]);
        assert.ok(same);
        assert.equal(left, 0);
      }
    });
  }
});
