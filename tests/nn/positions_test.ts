/** Tables of positions: what they hold, and how long they stay. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../doors/device.ts";
import { DryDevice } from "../../src/device/dry/device.ts";
import { PositionNumbers } from "../../src/nn/positions.ts";
import { scope } from "../../src/tensor/scope.ts";

const OPTIONS = { cpuMath: "wasm", memoryBytes: 2 ** 24 } as const;

test("PositionNumbers counts from any position on, also beyond the last one of the model", async () => {
  const device = await openDevice("cpu", OPTIONS);
  const numbers = new PositionNumbers(device, 6);
  const before = device.allocator.stats.inUse;
  for (const [start, count] of [[0, 3], [2, 1], [3, 3], [0, 9], [7, 2]] as const) {
    using _frame = scope();
    assert.deepEqual([...numbers.of(start, count).toArray()], Array.from({ length: count }, (_, i) => start + i));
  }
  assert.equal(device.allocator.stats.inUse - before, 256, "those that were outgrown are left");
  device.dispose();
});

test("PositionNumbers keeps what a graph reads until that is dropped", async () => {
  const cpu = await openDevice("cpu", OPTIONS);
  const device = new DryDevice(cpu);
  const { allocator, graphs } = device;
  const numbers = new PositionNumbers(device, 4096);
  const sizes: number[] = [];
  const read = (count: number): void => {
    using _frame = scope();
    numbers.of(0, count);
  };
  const before = allocator.stats.inUse;
  const tell = (): void => void sizes.push(allocator.stats.inUse - before);
  read(64);
  tell();
  const work = (): void => {
    read(64);
    allocator.free(allocator.allocate(4, "what a step takes"));
  };
  const { graph } = graphs.capture("a step", graphs.rehearse(work), work);
  const block = allocator.stats.inUse - before - 256;
  read(128);
  tell();
  graph[Symbol.dispose]();
  tell();
  assert.deepEqual(sizes, [256, 256 + block + 512, 512]);
  cpu.dispose();
});
