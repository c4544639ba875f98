/** A process that gathers windows so large that they are copied past caches, and says whether every byte is right. @module */
import process from "node:process";
import { openProcessGroup } from "../../src/comm/registry.ts";
import { devicePtr } from "../../src/device/device.ts";
import { openNativeDevice } from "../../src/device/native/device.ts";

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
process.stdout.write(`${group.kind} ${group.rank}: ${wrong.length === 0 ? "as published" : wrong.join(", ")}\n`);
