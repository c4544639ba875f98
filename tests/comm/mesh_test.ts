/** Meshes: coordinates, axes and refusals. @module */
import { test } from "node:test";
import assert from "node:assert/strict";
import { deviceMesh } from "../../src/comm/mesh.ts";
import { ProcessGroup } from "../../src/comm/process_group.ts";
import { createLoopbackWorld, openLoopback } from "../../src/comm/transports/loopback.ts";
import { runLoopback } from "../../src/comm/transports/loopback_workers.ts";
import { openCommDevice } from "../support/comm_device.ts";

async function alone(): Promise<ProcessGroup> {
  return new ProcessGroup(openLoopback(createLoopbackWorld(1), 0, await openCommDevice(2 ** 24)));
}

test("deviceMesh() lays axes in row-major order", async () => {
  const places = await runLoopback(4, new URL("./mesh_rank.ts", import.meta.url), { replicate: 2, shard: 2 });
  assert.deepEqual(places, [
    { coordinate: [0, 0], replicate: [0, 2], shard: [0, 1], sums: [2, 1] },
    { coordinate: [0, 1], replicate: [1, 3], shard: [0, 1], sums: [4, 1] },
    { coordinate: [1, 0], replicate: [0, 2], shard: [2, 3], sums: [2, 5] },
    { coordinate: [1, 1], replicate: [1, 3], shard: [2, 3], sums: [4, 5] },
  ]);
});

test("deviceMesh() of one rank has all axes", async () => {
  using group = await alone();
  const mesh = deviceMesh(group, { replicate: 1, shard: 1 });
  assert.deepEqual([mesh.shape, mesh.coordinate, mesh.axis("shard").size], [[1, 1], [0, 0], 1]);
});

test("deviceMesh() refuses shapes that do not fit", async () => {
  using group = await alone();
  assert.throws(() => deviceMesh(group, { replicate: 2, shard: 2 }), {
    name: "ArgumentError",
    message: "A mesh of { replicate: 2, shard: 2 } has 4 ranks, but group 'world' has 1",
  });
  assert.throws(() => deviceMesh(group, { shard: 0 }), /axes of positive length, got { shard: 0 }/);
  assert.throws(() => deviceMesh(group, { shard: 1 }).axis("data"), /No axis is called 'data': the mesh has shard/);
});
