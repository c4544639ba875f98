/** A process that gathers and sums so much that it goes past caches, and says whether every byte is right. @module */
import process from "node:process";
import { openProcessGroup } from "../../src/comm/registry.ts";
import { devicePtr } from "../../src/device/device.ts";
import { openNativeDevice } from "../../src/device/native/device.ts";
import { float32 } from "../../src/dtype.ts";

const PART = 2 ** 23 + 20;

const device = await openNativeDevice({ memoryBytes: 2 ** 28 });
using group = await openProcessGroup({ device, joinTimeoutSeconds: 20 });
const parts = Array.from({ length: group.size }, () => PART);
const byteOf = (rank: number, epoch: number, i: number): number => (i * 31 + (i >> 9) + rank * 77 + epoch * 13) & 255;
const window = group.openWindow(parts, "large");
const block = device.allocator.allocate(group.size * (PART + 4) + 4, "destination");
const offsets = parts.map((_, rank) => 4 + rank * (PART + 4));
const wrong: string[] = [];
for (let epoch = 0; epoch < 3; epoch++) {
  window.beginWrite("large");
  device.copyIn(window.pointer, new Uint8Array(PART).map((_, i) => byteOf(group.rank, epoch, i)));
  window.endWrite();
  const expected = new Uint8Array(group.size * (PART + 4) + 4).fill(250);
  device.copyIn(block, expected);
  window.gather(devicePtr(block), offsets, "large", "forward").wait();
  offsets.forEach((offset, rank) => {
    for (let i = 0; i < PART; i++) expected[offset + i] = byteOf(rank, epoch, i);
  });
  const found = new Uint8Array(expected.length);
  device.copyOut(found, block);
  const first = found.findIndex((byte, i) => byte !== expected[i]);
  if (first >= 0) wrong.push(`byte ${first} of epoch ${epoch}`);
}
window.dispose();

// Sums of small integers are exact. Of the runs, the first begins on a line of the caches, the second does not.
const LENGTH = 2 ** 21 + 5;
const slices = parts.map((_, rank) => ({ offset: rank * LENGTH, length: LENGTH }));
const valueOf = (rank: number, i: number): number => (i * 7 + (i >> 11) + rank * 5) % 1009 - 500;
const own = group.rank * LENGTH;
const src = device.allocator.allocate(group.size * LENGTH * 4, "source");
device.copyIn(
  src,
  new Uint8Array(Float32Array.from({ length: slices.length * LENGTH }, (_, i) => valueOf(group.rank, i)).buffer),
);
const apart = device.allocator.allocate(LENGTH * 4 + 4, "sums");
for (const dst of [apart, devicePtr(apart + 4), devicePtr(src + own * 4)]) {
  const shape = { src, dtype: float32, slices, dst, dstDtype: float32, accumulate: false };
  group.reduceScatter(shape, "large").wait();
  const sums = new Float32Array(LENGTH);
  device.copyOut(new Uint8Array(sums.buffer), dst);
  const first = sums.findIndex((sum, i) => sum !== valueOf(0, own + i) + valueOf(1, own + i));
  if (first >= 0) wrong.push(`sum ${first} of ${dst === apart ? "the first" : "another"} place`);
}
process.stdout.write(`${group.kind} ${group.rank}: ${wrong.length === 0 ? "right" : wrong.join(", ")}\n`);
