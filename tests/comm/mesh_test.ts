/** Meshes: coordinates, axes and refusals. @module */
import { test } from "node:test";
import assert from "node:assert/strict";
import { deviceMesh, type MeshShape } from "../../src/comm/mesh.ts";
import type { ProcessGroup } from "../../src/comm/process_group.ts";
import { createLoopbackWorld, openLoopback } from "../../src/comm/data/loopback.ts";
import { openCommDevice } from "../support/comm_device.ts";
import { valuesOf, world } from "../support/world.ts";
import { cutGrid } from "./mesh_ranks.ts";
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

/** The world's ranks whose places differ from those of `rank` on some axes only, by counting all. */
function ranksBeside(shape: MeshShape, rank: number, axes: readonly string[]): number[] {
  const lengths = Object.entries(shape);
  const size = lengths.reduce((all, [, length]) => all * length, 1);
  const placeOf = (of: number): string => {
    const places: number[] = [];
    for (const [name, length] of lengths.toReversed()) {
      if (!axes.includes(name)) places.push(of % length);
      of = Math.floor(of / length);
    }
    return places.join();
  };
  return Array.from({ length: size }, (_, other) => other).filter((other) => placeOf(other) === placeOf(rank));
}

for (
  const data of [{ dp: 1, cp: 1, tp: 1 }, { dp: 1, cp: 1, tp: 2 }, { dp: 2, cp: 2, tp: 1 }, { dp: 2, cp: 2, tp: 2 }]
) {
  const size = data.dp * data.cp * data.tp;
  test(`DeviceMesh.get(), slice() and flatten() give axes of ${size} ranks, ${JSON.stringify(data)}`, async () => {
    for (const [rank, found] of valuesOf(await world(size, cutGrid, { data })).entries()) {
      const place = { dp: Math.floor(rank / (data.cp * data.tp)), cp: Math.floor(rank / data.tp) % data.cp };
      const expected = {
        one: { axes: ["tp"], shape: [data.tp], coordinate: [rank % data.tp] },
        slice: { axes: ["cp", "tp"], shape: [data.cp, data.tp], coordinate: [place.cp, rank % data.tp] },
        flat: { axes: ["dp_cp"], shape: [data.dp * data.cp], coordinate: [place.dp * data.cp + place.cp] },
      };
      for (const [name, over] of [["one", ["tp"]], ["slice", ["cp", "tp"]], ["flat", ["dp", "cp"]]] as const) {
        const ranks = ranksBeside(data, rank, over);
        const sum = ranks.reduce((all, other) => all + other, 0);
        assert.deepEqual(found[name], { ...expected[name], ranks, sum }, `${name} on rank ${rank}`);
      }
      for (const [fact, holds] of Object.entries(found.holds)) assert.ok(holds, fact);
      const patterns = [
        /No axis is called 'ep': the mesh has dp, cp, tp, dp_cp/,
        /No axis is called 'dp': the mesh has cp, tp, dp_cp/,
        /Cannot slice tp × dp: give axes outermost first, as the mesh has them: dp, cp, tp/,
        /Cannot slice dp × dp: an axis is named twice/,
        /Cannot slice nothing: name some of dp, cp, tp/,
        /Cannot flatten cp × tp to 'dp_cp': the mesh has another axis of that name; give a new name/,
        /Cannot flatten cp × tp to 'dp': the mesh has another axis/,
        /Cannot flatten dp_cp × cp: an axis is named twice, or lies in another that was flattened/,
        /Cannot flatten tp × cp: give axes outermost first/,
        /An axis cannot be called 'no word'/,
      ];
      for (const [i, pattern] of patterns.entries()) assert.match(found.errors[i] ?? "", pattern);
    }
  });
}

test("deviceMesh() makes one group for axes that join the same ranks", async () => {
  const [found] = valuesOf(await world(8, cutGrid, { data: { dp: 2, cp: 2, tp: 2 } }));
  assert.deepEqual(found?.splits, ["dp", "cp", "tp", "dp_cp", "cp_tp"]);
  const [flat] = valuesOf(await world(2, cutGrid, { data: { dp: 1, cp: 1, tp: 2 } }));
  assert.deepEqual(flat?.splits, ["dp"], "two axes of one rank have one group, and that of all ranks the world's");
});

test("deviceMesh() refuses names that are no words, whose order would not be kept", async () => {
  using group = await alone();
  assert.throws(() => deviceMesh(group, { a: 1, 0: 1 }), /An axis cannot be called '0': give a word/);
});
