/** The planes that move nothing: memory as on the real ones, accesses told, no waiting, any world. @module */
import assert from "node:assert/strict";
import { byteLengthOf } from "../../src/comm/call.ts";
import { openDry } from "../../src/comm/data/dry.ts";
import { deviceMesh } from "../../src/comm/mesh.ts";
import { DryDevice } from "../../src/device/dry/device.ts";
import type { Touch } from "../../src/device/dry/hazards.ts";
import { float32 } from "../../src/dtype.ts";
import { openCommDevice } from "../support/comm_device.ts";
import { valuesOf, world } from "../support/world.ts";
import { exercise } from "./ranks.ts";
import { sharedTest as test } from "../support/share.ts";

for (const standsFor of ["shm", "loopback"] as const) {
  for (const [size, stagingBytes] of [[1, 2 ** 22], [2, 2 ** 22], [3, 2 ** 22], [4, undefined], [3, 16384]] as const) {
    const what = `${size} ranks of ${standsFor} with ${stagingBytes ?? "the usual"} bytes of staging`;
    test(`a dry group takes the memory of ${what}, to the byte and address`, { timeout: 60_000 }, async () => {
      const options = { over: standsFor, planes: { stagingBytes }, memoryBytes: 2 ** 27 };
      const real = valuesOf(await world(size, exercise, options));
      for (const [rank, expected] of real.entries()) {
        const device = await openCommDevice(2 ** 27);
        using group = openDry(device, { rank, worldSize: size, standsFor, stagingBytes });
        assert.deepEqual(exercise({ group, device }), expected, `rank ${rank}`);
      }
    });
  }
}

test("a dry group runs no kernel, changes no byte and gives its memory back", async () => {
  const device = await openCommDevice(2 ** 25);
  device.onSum = () => assert.fail("a kernel ran");
  using scalar = device.scalars.make(0);
  device.allocator.allocate(2 ** 16, "between the scalars and what follows");
  const all = new Uint8Array(device.memory.buffer, scalar.ptr + 2 ** 15);
  all.subarray(2 ** 22).fill(7);
  const before = all.slice();
  const group = openDry(device, { rank: 2, worldSize: 5, stagingBytes: 2 ** 20 });
  exercise({ group, device });
  group.dispose();
  assert.equal(all.findIndex((byte, i) => byte !== before[i]), -1);
  // The exercise keeps two blocks and one window; the scalars and the block after them stay.
  assert.ok(device.allocator.stats.inUse < 2 ** 23 + 2 ** 22 + 2 ** 17);
});

test("a dry group tells what calls would read and write", async () => {
  const told: string[] = [];
  class Listening extends DryDevice {
    override enqueue(operation: string, touches: readonly Touch[]): void {
      const spell = (isWritten: boolean): string =>
        touches.filter(({ writes }) => writes === isWritten).map(({ address, byteLength }) =>
          `${address - base}+${byteLength}`
        ).join(" ");
      told.push(`${spell(false)} -> ${spell(true)}`);
      super.enqueue(operation, touches);
    }
  }
  const device = new Listening(await openCommDevice());
  const base = device.allocator.allocate(2 ** 16, "test");
  using group = openDry(device, { rank: 1, worldSize: 3 });
  const [src, dst] = [base, group.openWindow([16, 8, 16], "unit").pointer];
  assert.equal(dst % 4096, 0);
  group.allReduce(src, 4, float32, { unit: "loss" });
  const slices = [{ offset: 0, length: 4 }, { offset: 8, length: 2 }, { offset: 16, length: 4 }];
  group.reduceScatter({ src, dtype: float32, slices, dst, dstDtype: float32, accumulate: true }, "unit");
  group.allGather(dst, src, 8, "all");
  group.broadcast(src, 12, 1, "mine");
  group.broadcast(src, 12, 0, "other");
  const whole = [0, 1, 2].map((rank) => ({ offset: 4 * rank, length: 4 }));
  group.reduceScatter({ src, dtype: float32, slices: whole, dst, dstDtype: float32, accumulate: false }, "unit");
  group.transfer([{ kind: "send", ptr: src, byteLength: 4, peer: 0 }, {
    kind: "receive",
    ptr: dst,
    byteLength: 8,
    peer: 2,
  }], "x");
  const to = dst - base;
  assert.deepEqual(told, [
    "0+16 -> 0+16",
    `0+16 32+8 64+16 ${to}+8 -> ${to}+8`,
    `0+8 -> ${to}+24`,
    "0+12 -> ",
    " -> 0+12",
    `0+48 -> ${to}+16`,
    `0+4 -> ${to}+8`,
  ]);
});

test("a dry group is any rank of any world, and every other rank says what it says", async () => {
  const device = await openCommDevice(2 ** 24);
  const started = performance.now();
  using group = openDry(device, { rank: 9000, worldSize: 16384, standsFor: "loopback", stagingBytes: 2 ** 40 });
  let bytes = 0;
  group.observe((call) => void (bytes += byteLengthOf(call)));
  assert.equal(group.sum([2], "tokens")[0], 32768);
  assert.equal(new Set(group.exchangeText("a", "text")).size, 1);
  group.barrier("all");
  assert.equal(await group.together("save", () => 5), 5);
  await assert.rejects(group.together("save", () => Promise.reject(new Error("full"))), /^Error: full$/);
  const mesh = deviceMesh(group, { replicate: 128, shard: 128 });
  assert.deepEqual(mesh.coordinate, [70, 40]);
  assert.deepEqual([mesh.axis("shard").rank, mesh.axis("shard").mesh?.axis], [40, "shard"]);
  assert.equal(mesh.axis("replicate").worldRanks[3], 3 * 128 + 40);
  const window = mesh.axis("shard").openWindow(new Array(128).fill(1024), "layers.0");
  window.gather(device.allocator.allocate(2 ** 17, "test"), new Array(128).fill(0), "layers.0", "forward");
  assert.equal(bytes, 8 + 2 * 128 * 1024);
  assert.ok(performance.now() - started < 3000, "it waited");
  group.abort("enough");
  assert.throws(() => group.barrier("never"), /Rank 9000 in barrier 'never' .*enough/);
});
