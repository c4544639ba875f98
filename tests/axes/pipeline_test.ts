/** Pipeline parallelism against one rank: values, losses, norms, gradients, evaluations. @module */
import assert from "node:assert/strict";
import type { MeshShape } from "../../doors/comm.ts";
import { bitFaults, distanceOf } from "../../scripts/axes/distance.ts";
import type { FamilyOrders, FamilyReport } from "../../scripts/axes/training.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { sharedTest as test } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { trainFamily } from "./pipeline_ranks.ts";

async function train(orders: FamilyOrders): Promise<readonly FamilyReport[]> {
  const size = Object.values(orders.axes).reduce((all, length) => all * length, 1);
  return valuesOf<FamilyReport>(await world(size, trainFamily, { data: orders }));
}

/** Fails unless ranks have what one rank has, within rounding, and each other's bits. */
function assertAsAlone(all: readonly FamilyReport[], alone: FamilyReport, where: string): void {
  assert.deepEqual(bitFaults(all, alone, 1), [], where);
  const { loss, norm, gradient, worst } = distanceOf(all, alone);
  assert.ok(loss <= 1 && norm <= 1 && gradient <= 1, `${where}: ${JSON.stringify({ loss, norm, gradient, worst })}`);
}

const MESHES: readonly (readonly [mesh: MeshShape, stages: FamilyOrders["stages"]])[] = [
  [{ pipeline: 4 }, {}],
  [{ pipeline: 2 }, { schedule: "interleaved" }],
];

test("llama over stages trains as on one rank: to the bit, but where a tied weight's gradients are added in another order", async () => {
  for (const [i, { tied, hfConfig }] of zooModels("llama").entries()) {
    const config = { ...hfConfig, num_hidden_layers: 4 };
    const [alone = assert.fail()] = await train({ config, axes: { shard: 1 }, stages: {} });
    assert.ok(alone.norms.some((norm) => norm > 0.1), "clipping is active");
    for (const [axes, stages] of [MESHES[i] ?? assert.fail()]) {
      const all = await train({ config, axes, stages, checkpointing: i === 0 });
      assertAsAlone(all, alone, JSON.stringify([tied, axes, stages]));
      if (!tied) assert.equal(all[0]?.last, alone.last);
    }
  }
});
