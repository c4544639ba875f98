/** Forwards and backwards that throw: what they gathered is freed, and the next step has the bits of a first one. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { shardedModuleOf } from "../../src/fsdp/handle.ts";
import { messageOf } from "../support/message.ts";
import { sharedTest as it, usualFirst } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { forwardBackward, shardStack } from "./life_cycle_scenario.ts";
import { openRank } from "./run.ts";
import { failSteps, type Place, type Sharding, SHARDINGS } from "./step_failures_ranks.ts";

const PLACES = ["memory", "pre-hook", "hook", "result", "input", "backward", "gradient hook"] as const;

/** Ranks that a sharding needs. */
function sizeOf(sharding: Sharding, place: Place): number {
  if (sharding === "neighbours" || sharding === "hybrid") return 4;
  return sharding === "placed" ? 2 : place === "memory" ? 1 : 3;
}

for (const [number, sharding] of SHARDINGS.entries()) {
  const traps: readonly Place[] = sharding === "extension"
    ? ["extension"]
    : sharding === "custom"
    ? ["collective"]
    : [];
  describe(`a step of fullyShard(), ${sharding}`, () => {
    // Each place under every third sharding, by turns.
    for (const place of [...usualFirst(PLACES, (nth) => (nth + number) % 3 === 0), ...traps]) {
      const size = sizeOf(sharding, place);
      it(`that fails in its ${place} leaves nothing behind, on ${size} ranks`, async () => {
        for (const { failures, faults } of valuesOf(await world(size, failSteps, { data: [sharding, place] }))) {
          assert.deepEqual(faults, []);
          assert.ok(failures > 0, "nothing failed");
        }
      });
    }
  });
}

describe("resetIterState()", () => {
  it("is a root's, and not inside a backward", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 1 });
    const [below] = stack.model.layers.map((layer) => shardedModuleOf(layer));
    forwardBackward(rank, stack, "a");
    assert.throws(() => below?.resetIterState(), {
      name: "ArgumentError",
      message: "Cannot reset 'layers.0', which is below 'Stack': call it on that root",
    });
    let told = "";
    stack.model.head.weight.registerPostAccumulateGradHook(() => {
      told = messageOf(() => stack.sharded.resetIterState());
    });
    forwardBackward(rank, stack, "b");
    assert.match(told, /^ArgumentError: Cannot reset 'Stack' inside a backward: call it when that has ended/);
    stack.sharded.resetIterState();
    assert.ok([...stack.model.parameters()].every(({ grad }) => grad === undefined));
  });
});
