/** Groups and meshes whose opening fails in the middle: what was opened is closed, and the next call goes well. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { createLoopbackWorld, openLoopback } from "../../src/comm/data/loopback.ts";
import { deviceMesh } from "../../src/comm/mesh.ts";
import type { ProcessGroup } from "../../src/comm/process_group.ts";
import { openCommDevice } from "../support/comm_device.ts";
import { valuesOf, world } from "../support/world.ts";
import { meshesAndGroups, sumWithoutMemory } from "./ranks.ts";

async function alone(): Promise<ProcessGroup> {
  return openLoopback(createLoopbackWorld(1), 0, await openCommDevice(2 ** 24));
}

describe("deviceMesh()", () => {
  it("gives one mesh for equal requests, and another one for others", async () => {
    using group = await alone();
    const mesh = deviceMesh(group, { replicate: 1, shard: 1 });
    assert.equal(deviceMesh(group, { replicate: 1, shard: 1 }), mesh);
    assert.notEqual(deviceMesh(group, { shard: 1, replicate: 1 }), mesh);
    assert.notEqual(deviceMesh(group, { data: 1, shard: 1 }), mesh);
    assert.notEqual(deviceMesh(group.split([0], "part"), { replicate: 1, shard: 1 }), mesh);
  });

  for (const over of ["loopback", "shm"] as const) {
    it(`may be called for each of many units, and anew after its groups were disposed, over ${over}`, async () => {
      for (const { equal, anew, sums, refused, room } of valuesOf(await world(4, meshesAndGroups, { over }))) {
        assert.ok(equal, "40 calls gave one mesh");
        assert.ok(anew, "a mesh whose groups are gone is not given again");
        assert.deepEqual(sums, [2, 2]);
        if (over === "shm") continue;
        assert.match(
          refused,
          /no room for group '\w+': ranks may be in 16 groups at once.* Make a mesh once and give it to all/,
        );
        assert.ok(room, "the axis that was made before the one without room is gone");
      }
    });
  }
});

describe("collectives whose staging finds no memory", () => {
  for (const size of [2, 3]) {
    it(`go well the next time, on ${size} ranks`, async () => {
      const sum = size * (size + 1) / 2;
      const expected = [`small ${sum}`, `largest ${size}`, `scattered ${sum}`, `large ${sum}`];
      for (const results of valuesOf(await world(size, sumWithoutMemory))) assert.deepEqual(results, expected);
    });
  }
});
