/**
 * The allocator: blocks never overlap, every byte comes back, and running out says why. Buffers count their owners.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Allocator } from "../../src/device/allocator.ts";
import { Buffer } from "../../src/device/buffer.ts";
import { type DevicePtr, devicePtr } from "../../src/device/device.ts";
import { openDevice } from "../../src/device/registry.ts";
import {
  ArgumentError,
  InternalError,
  OutOfMemoryError,
  UnsupportedError,
  UseAfterDisposeError,
} from "../../src/errors.ts";

test("Allocator.allocate(): blocks are aligned, apart, counted, and come back", () => {
  const allocator = new Allocator("test", 100, 100_000);
  const blocks = [0, 1, 256, 257, 1000].map((bytes) => allocator.allocate(bytes, "block"));
  assert.ok(blocks.every((ptr) => ptr % 256 === 0 && ptr >= 100));
  assert.deepEqual(blocks.map((ptr) => ptr - (blocks[0] ?? 0)), [0, 256, 512, 768, 1280]);
  const { inUse, peak, highest, capacity } = allocator.stats;
  assert.deepEqual({ inUse, peak, highest, capacity }, {
    inUse: 2304,
    peak: 2304,
    highest: 256 + 2304,
    capacity: 99_744,
  });
  for (const ptr of blocks) allocator.free(ptr);
  assert.equal(allocator.stats.inUse, 0);
  assert.equal(allocator.stats.peak, 2304);
  allocator.resetPeak();
  assert.equal(allocator.stats.peak, 0);
  assert.equal(allocator.allocate(99_000, "all"), blocks[0]);
});

test("Allocator.allocate(): alignments larger than 256 leave the gap to others", () => {
  const allocator = new Allocator("test", 256, 1 << 20);
  const first = allocator.allocate(10, "small");
  const page = allocator.allocate(8192, "page", "activations", 4096);
  assert.equal(page % 4096, 0);
  const between = allocator.allocate(256, "gap");
  assert.ok(between > first && between < page);
  for (const ptr of [first, page, between]) allocator.free(ptr);
  assert.equal(allocator.allocate((1 << 20) - 256, "all"), 256);
});

test("Allocator: thousands of blocks in random order never overlap and leave one free range", () => {
  const capacity = 1 << 20;
  const allocator = new Allocator("test", 0, capacity);
  const live = new Map<DevicePtr, number>();
  let state = 1;
  const next = (bound: number): number => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return Math.floor(state / 2 ** 32 * bound);
  };
  for (let round = 0; round < 4000; round++) {
    if (live.size > 0 && next(100) < 48) {
      const [ptr] = [...live.keys()].slice(next(live.size));
      assert.ok(ptr !== undefined);
      allocator.free(ptr);
      live.delete(ptr);
      continue;
    }
    const bytes = next(6000);
    try {
      const ptr = allocator.allocate(bytes, "block");
      const end = ptr + Math.max(256, Math.ceil(bytes / 256) * 256);
      for (const [other, otherEnd] of live) assert.ok(end <= other || ptr >= otherEnd);
      live.set(ptr, end);
    } catch (error) {
      assert.ok(error instanceof OutOfMemoryError);
    }
    assert.equal(allocator.stats.inUse, [...live].reduce((sum, [ptr, end]) => sum + end - ptr, 0));
  }
  for (const ptr of live.keys()) allocator.free(ptr);
  assert.equal(allocator.stats.inUse, 0);
  assert.equal(allocator.allocate(capacity, "all"), 0);
});

test("Allocator.stats: what the peak was made of, and how high memory was in use", () => {
  const allocator = new Allocator("test", 0, 1 << 20);
  const weights = allocator.allocate(1024, "weights", "parameters");
  const first = allocator.allocate(2048, "x");
  const second = allocator.allocate(512, "y");
  allocator.free(first);
  allocator.allocate(256, "moments", "optimizer");
  const { peakTerms } = allocator.stats;
  assert.deepEqual([peakTerms.parameters, peakTerms.activations, peakTerms.optimizer], [1024, 2560, 0]);
  allocator.resetPeak();
  const now = allocator.stats;
  assert.equal(now.peak, 1024 + 512 + 256);
  assert.deepEqual([now.peakTerms.activations, now.peakTerms.optimizer], [512, 256]);
  assert.equal(now.highest, second + 512, "a gap below counts");
  for (const ptr of [weights, second]) allocator.free(ptr);
});

test("Allocator: running out names bytes asked, in use, the largest owners and fragments", () => {
  const allocator = new Allocator("cpu:0", 0, 10 * 1024);
  const blocks = Array.from({ length: 10 }, (_, i) => allocator.allocate(1024, i < 7 ? "weights" : "activations"));
  assert.throws(() => allocator.allocate(100, "more"), (error) => {
    assert.ok(error instanceof OutOfMemoryError);
    assert.deepEqual([error.asked, error.inUse, error.capacity], [256, 10240, 10240]);
    assert.match(
      error.message,
      /on cpu:0: asked for 256 bytes with 10\.0 KiB of 10\.0 KiB in use\. Largest owners: weights: 7\.0 KiB, activations: 3\.0 KiB\./,
    );
    return true;
  });
  for (const ptr of blocks.filter((_, i) => i % 2 === 0)) allocator.free(ptr);
  assert.throws(() => allocator.allocate(2048, "more"), /the largest free block has 1\.0 KiB/);
  assert.deepEqual(allocator.owners(1), [{ owner: "weights", bytes: 3072 }]);
});

test("Allocator.free() refuses what is not allocated", () => {
  const allocator = new Allocator("test", 0, 4096);
  const ptr = allocator.allocate(10, "block");
  assert.throws(() => allocator.free(devicePtr(ptr + 256)), InternalError);
  allocator.free(ptr);
  assert.throws(() => allocator.free(ptr), /freed address 0 that is not allocated/);
});

test("Buffer frees its memory with the last owner, and refuses use afterwards", async () => {
  const device = await openDevice("cpu", { memoryBytes: 16 * 2 ** 20 });
  const before = device.allocator.stats.inUse;
  const buffer = Buffer.allocate(device, 1000, "test");
  assert.ok(!buffer.shared);
  buffer.retain();
  assert.ok(buffer.shared);
  buffer.release();
  assert.equal(device.allocator.stats.inUse, before + 1024);
  buffer.release();
  assert.ok(buffer.disposed && !buffer.hasMemory);
  assert.equal(device.allocator.stats.inUse, before);
  assert.throws(() => buffer.ptr, UseAfterDisposeError);
  assert.throws(() => buffer.ptr, /'test' is used after it was disposed/);
  assert.throws(() => buffer.retain(), UseAfterDisposeError);
  assert.throws(() => buffer.release(), InternalError);
});

test("Buffer without memory of its own: attached and detached, or borrowed", async () => {
  const device = await openDevice("cpu", { memoryBytes: 16 * 2 ** 20 });
  const before = device.allocator.stats.inUse;
  const buffer = Buffer.empty(device, 1000, "unit", "gathered");
  assert.throws(() => buffer.ptr, /'unit' has no memory/);
  buffer.allocateMemory();
  assert.throws(() => buffer.allocateMemory(), InternalError);
  const borrowed = Buffer.borrow(device, buffer.ptr, 1000, "borrowed");
  assert.equal(borrowed.ptr, buffer.ptr);
  borrowed.release();
  assert.ok(buffer.hasMemory);
  buffer.freeMemory();
  buffer.freeMemory();
  assert.equal(device.allocator.stats.inUse, before);
  buffer.allocateMemory();
  buffer.release();
  assert.equal(device.allocator.stats.inUse, before);
});

test("openDevice() opens what is there and refuses everything else", async () => {
  const device = await openDevice("cpu", { memoryBytes: 16 * 2 ** 20, cpuMath: "wasm" });
  assert.deepEqual([device.name, device.mathName], ["cpu:0", "wasm"]);
  const bytes = new Uint8Array(4);
  const ptr = device.allocator.allocate(16, "bytes");
  device.copyIn(ptr, new Uint8Array([1, 2, 3, 4]));
  device.copy(devicePtr(ptr + 1), ptr, 4);
  device.copyOut(bytes, ptr);
  assert.deepEqual([...bytes], [1, 1, 2, 3]);
  device.dispose();
  for (const name of ["cuda:x", "cpu:1", "", "toString", "CPU"]) {
    await assert.rejects(async () => await openDevice(name), UnsupportedError, name);
  }
  for (const memoryBytes of [0, -1, NaN, 2 ** 20, 2 ** 33]) {
    await assert.rejects(() => openDevice("cpu", { memoryBytes }), ArgumentError, `${memoryBytes}`);
  }
});

test("openDevice(): each device has memory of its own", async () => {
  const [a, b] = await Promise.all([0, 1].map(() => openDevice("cpu", { memoryBytes: 16 * 2 ** 20 })));
  assert.ok(a !== undefined && b !== undefined);
  const [ptrA, ptrB] = [a.allocator.allocate(4, "a"), b.allocator.allocate(4, "b")];
  assert.equal(ptrA, ptrB);
  a.copyIn(ptrA, new Uint8Array([1, 2, 3, 4]));
  b.copyIn(ptrB, new Uint8Array([5, 6, 7, 8]));
  const bytes = new Uint8Array(4);
  a.copyOut(bytes, ptrA);
  assert.deepEqual([...bytes], [1, 2, 3, 4]);
});
