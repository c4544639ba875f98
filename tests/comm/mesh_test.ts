/** Meshes: coordinates, axes and refusals. @module */
import { test } from "node:test";
import assert from "node:assert/strict";
import { deviceMesh, type MeshShape } from "../../src/comm/mesh.ts";
import type { ProcessGroup } from "../../src/comm/process_group.ts";
import { createLoopbackWorld, openLoopback } from "../../src/comm/data/loopback.ts";
import { openCommDevice } from "../support/comm_device.ts";
import { valuesOf, world } from "../support/world.ts";
import { placeInMesh } from "./ranks.ts";

async function alone(): Promise<ProcessGroup> {
  return openLoopback(createLoopbackWorld(1), 0, await openCommDevice(2 ** 24));
}

test("deviceMesh() lays axes in row-major order", async () => {
  const data: MeshShape = { replicate: 2, shard: 2 };
  assert.deepEqual(valuesOf(await world(4, placeInMesh, { data })), [
    { coordinate: [0, 0], axes: [[0, 2], [0, 1]], sums: [2, 1], names: ["replicate", "shard"] },
    { coordinate: [0, 1], axes: [[1, 3], [0, 1]], sums: [4, 1], names: ["replicate", "shard"] },
    { coordinate: [1, 0], axes: [[0, 2], [2, 3]], sums: [2, 5], names: ["replicate", "shard"] },
    { coordinate: [1, 1], axes: [[1, 3], [2, 3]], sums: [4, 5], names: ["replicate", "shard"] },
  ]);
});

test("deviceMesh() tells a group that it is an axis of a larger mesh, and no other", async () => {
  const data: MeshShape = { replicate: 1, shard: 2 };
  const [first] = valuesOf(await world(2, placeInMesh, { data }));
  // The other axis has one rank, so the shard axis is all of the mesh.
  assert.deepEqual(first?.names, ["replicate", undefined].map((name) => name ?? null));
  using group = await alone();
  assert.equal(group.mesh, undefined);
  assert.equal(group.split([0], "part").mesh, undefined);
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
