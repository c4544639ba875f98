/** Narrow dtypes over axes: gradients of each parameter beside one rank's in the same dtype. @module */
import assert from "node:assert/strict";
import type { FamilyOrders, FamilyReport } from "../../scripts/axes/training.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { onlyInAll, sharedTest as test } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { trainFamily } from "./families_ranks.ts";

async function train(orders: FamilyOrders): Promise<FamilyReport> {
  const ranks = Object.values(orders.axes).reduce((all, length) => all * length, 1);
  const [first = assert.fail()] = valuesOf<FamilyReport>(await world(ranks, trainFamily, { data: orders }));
  return first;
}

/** The norm of a difference, as a share of what should be. */
function offBy(found: readonly number[], expected: readonly number[]): number {
  const sum = (values: readonly number[]): number => Math.hypot(...values);
  return sum(found.map((value, i) => value - (expected[i] ?? NaN))) / sum(expected);
}

/** Layers whose gradients are added over the ranks: norms of heads, norms of a rank's positions, biases behind a sum. */
const LAID: readonly (readonly [family: string, laid: Omit<FamilyOrders, "config">])[] = [
  ["qwen3", { axes: { shard: 2, tensor: 2 } }],
  ["gpt_oss", { axes: { shard: 2, tensor: 2 }, sequenceParallel: true, expertParallel: true }],
  ["gemma2", { axes: { tensor: 2 }, sequenceParallel: true, checkpointing: true }],
];

for (const paramDtype of ["bfloat16", "float16"] as const) {
  for (const [family, laid] of paramDtype === "bfloat16" ? LAID : onlyInAll(LAID)) {
    test(`${family} in ${paramDtype} over ${JSON.stringify(laid)} has one rank's gradients`, async () => {
      const config = zooModels(family)[0]?.hfConfig ?? assert.fail();
      const alone = await train({ config, axes: { shard: 1 }, paramDtype });
      const found = await train({ config, ...laid, paramDtype });
      const norms = Object.values(alone.gradients).map((values) => Math.hypot(...values));
      const least = 1e-3 * Math.max(...norms);
      for (const [name, expected] of Object.entries(alone.gradients)) {
        if (Math.hypot(...expected) < least) continue; // what cancels is rounding alone
        const off = offBy(found.gradients[name] ?? [], expected);
        assert.ok(off <= 0.1, `${name} is off by ${off}`);
      }
      for (const [i, loss] of found.losses.entries()) {
        assert.ok(Math.abs(loss / (alone.losses[i] ?? NaN) - 1) <= 1e-3, `loss ${i}: ${loss}, ${alone.losses[i]}`);
      }
    });
  }
}
