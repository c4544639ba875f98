/**
 * Arrays of 2^31 elements and more: strides, sizes and places keep all 64 bits. Native memory costs nothing until it is touched,
 * so these arrays are real, and of each only some pages are used.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { type Device, devicePtr } from "../../src/device/device.ts";
import { argumentBlock } from "../../src/device/cuda/arguments.ts";
import { DryDevice } from "../../src/device/dry/device.ts";
import { LIST_WORDS, numbersOf, packer } from "../../src/device/kernels/packing.ts";
import { CONSTANTS } from "../../src/device/kernels/signature.ts";
import { KERNELS } from "../../src/device/kernels/table.ts";
import { openNativeDevice } from "../../src/device/native/device.ts";
import { openWasmDevice } from "../../src/device/wasm/device.ts";
import { type DType, float32, int32, uint8 } from "../../src/dtype.ts";
import { ArgumentError, ShapeError, UnsupportedError } from "../../src/errors.ts";
import { openDry } from "../../src/comm/data/dry.ts";
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import { ModuleList } from "../../src/nn/container.ts";
import { Linear } from "../../src/nn/linear.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { Module } from "../../src/nn/module.ts";
import { embeddingOp } from "../../src/ops/embedding.ts";
import { sortPairsOp } from "../../src/ops/experts.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import { apply, applyOne } from "../../src/tensor/apply.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { Tensor } from "../../src/tensor/tensor.ts";
import { available } from "../support/available.ts";

const native = await available(openNativeDevice({ memoryBytes: 2 ** 36 }));
const skip = native === undefined && "no native kernels here";
after(() => native?.dispose());

const GIANT = 2 ** 31;

/** A tensor whose elements are not written. */
function untouched(device: Device, shape: readonly number[], dtype: DType): Tensor {
  return Tensor.empty(device, shape, dtype, "untouched");
}

/** Runs with the native device. */
function onNative(name: string, run: (device: Device) => void): void {
  test(name, { skip }, () => {
    if (native === undefined) return;
    using _frame = scope();
    run(native);
  });
}

onNative("contiguous(), comparisons, arithmetic and where over a stride of 2^31 and more", (device) => {
  for (const stride of [GIANT - 1, GIANT, GIANT + 7, 2 * GIANT, 2 * GIANT + 3]) {
    using x = untouched(device, [2, stride], uint8);
    x.narrow(0, 0, 1).narrow(1, 0, 4).copyFromHost(Uint8Array.of(1, 2, 3, 4));
    x.narrow(0, 1, 1).narrow(1, 0, 4).copyFromHost(Uint8Array.of(5, 6, 7, 8));
    const part = x.narrow(1, 0, 4);
    assert.deepEqual([...part.contiguous().toArray()], [1, 2, 3, 4, 5, 6, 7, 8], `stride ${stride}`);
    assert.deepEqual([...part.transpose(0, 1).toArray()], [1, 5, 2, 6, 3, 7, 4, 8]);
    assert.deepEqual([...part.gt(3).toArray()], [0, 0, 0, 1, 1, 1, 1, 1]);
    assert.deepEqual([...part.maskedFill(part.lt(3), 9).toArray()], [9, 9, 3, 4, 5, 6, 7, 8]);
  }
  using y = untouched(device, [2, GIANT + 5], float32);
  y.narrow(0, 0, 1).narrow(1, 0, 2).copyFromHost(Float32Array.of(1, 2));
  y.narrow(0, 1, 1).narrow(1, 0, 2).copyFromHost(Float32Array.of(3, 4));
  const part = y.narrow(1, 0, 2);
  assert.deepEqual([...part.add(part).toArray()], [2, 4, 6, 8]);
  assert.deepEqual([...part.mul(part.transpose(0, 1)).toArray()], [1, 6, 6, 16]);
  assert.deepEqual([...part.sum(0).toArray()], [4, 6]);
});

onNative("gather and embedding: a negative index is a fault in a dim of more than 2^32", (device) => {
  using x = untouched(device, [2 * GIANT + 5], uint8);
  assert.throws(() => x.gather(0, tensor(device, [-1], { dtype: int32 })).toArray(), ArgumentError);
  using table = untouched(device, [2 * GIANT + 5, 1], float32);
  const ids = tensor(device, [-1], { dtype: int32 });
  assert.throws(() => applyOne(embeddingOp, [table, ids], { paddingIdx: -1 }).toArray(), ArgumentError);
});

onNative("a fault tells places and limits of more than 32 bits", (device) => {
  using x = untouched(device, [2 * GIANT + 5], uint8);
  assert.throws(
    () => x.gather(0, tensor(device, [-3], { dtype: int32 })).toArray(),
    { message: "Cannot use index -3 at place 0: indices must be in [0, 4294967301)" },
  );
});

onNative("toArray() of more than the host has arrays for says so, and toString() shows the ends", (device) => {
  using x = untouched(device, [2 ** 35], uint8);
  assert.throws(() => x.toArray(), /Cannot read all 34359738368 elements of \[34359738368\].*narrow\(\)/s);
  x.narrow(0, 2 ** 35 - 3, 3).copyFromHost(Uint8Array.of(1, 2, 3));
  assert.ok(String(x).endsWith(", …, 1, 2, 3]"), String(x));
});

onNative("adamw updates the elements of a record that lies beyond 2^32", (device) => {
  const n = 2 ** 32 + 64;
  using param = untouched(device, [n], float32);
  using grad = untouched(device, [n], float32);
  const states = device.allocator.allocate(64, "states");
  const steps = tensor(device, [0, 0], { dtype: int32 });
  const table = new DataView(new ArrayBuffer(2 * CONSTANTS.RECORD_BYTES));
  const places = [[0, 4, 0, 0], [2 ** 32, 2 ** 32 + 4, 4, 1]] as const;
  places.forEach(([start, end, state, active], i) => {
    const at = i * CONSTANTS.RECORD_BYTES;
    [start, end, state].forEach((place, word) => table.setBigUint64(at + 8 * word, BigInt(place), true));
    table.setUint32(at + 24, active, true);
    [0.5, 0, 0.9, 0.999, 0].forEach((value, word) => table.setFloat64(at + 32 + 8 * word, value, true));
  });
  const records = device.allocator.allocate(table.byteLength, "records");
  device.copyIn(records, new Uint8Array(table.buffer));
  for (const [array, value] of [[param, 1], [grad, 3]] as const) {
    for (const start of [0, 2 ** 32]) array.narrow(0, start, 4).copyFromHost(new Float32Array(4).fill(value));
  }
  device.kernels.fill({ dtype: float32, n: 16, value: 0, dst: states });
  device.kernels.adamw({
    ...{ n, numStates: 8, numRecords: 2, param: param.ptr, grad: grad.ptr },
    ...{ expAvg: states, expAvgSq: devicePtr(states + 32), records, steps: steps.ptr },
  });
  assert.deepEqual([...param.narrow(0, 0, 4).toArray()], [1, 1, 1, 1], "another parameter is not updated");
  assert.deepEqual([...param.narrow(0, 2 ** 32, 4).toArray()], [0.5, 0.5, 0.5, 0.5]);
  device.allocator.free(states);
  device.allocator.free(records);
});

/** Four weights of 2^31 elements each, if a row has 2^15. */
class Layers extends Module<[x: Tensor], Tensor> {
  readonly layers: ModuleList<Linear>;

  constructor(device: Device, width: number) {
    super();
    this.layers = new ModuleList(
      Array.from({ length: 4 }, () => new Linear(device, width, 2 * width, { bias: false })),
    );
  }

  forward(x: Tensor): Tensor {
    const [first, ...others] = [...this.layers].map((layer) => layer.call(x).sum());
    assert.ok(first !== undefined);
    return others.reduce((sum, other) => sum.add(other), first);
  }
}

test("an FSDP unit of more than 2^32 elements writes records that tell its parameters apart", async () => {
  const cpu = await openWasmDevice({ memoryBytes: 2 ** 24 });
  const tables: DataView[] = [];
  class Recorded extends DryDevice {
    override copyIn(...[dst, bytes]: Parameters<DryDevice["copyIn"]>): void {
      if (bytes.byteLength === 4 * CONSTANTS.RECORD_BYTES) tables.push(new DataView(bytes.slice().buffer));
      super.copyIn(dst, bytes);
    }
  }
  const device = new Recorded(cpu);
  using group = openDry(device, { rank: 0, worldSize: 1 });
  const width = 2 ** 15;
  const model = new Layers(device, width);
  fullyShard(model, { mesh: group });
  initializeParameters(model, 0);
  const optimizer = new AdamW(model.parameters());
  {
    using _frame = scope();
    const x = tensor(device, new Float32Array(width), { shape: [1, width] });
    model.call(x).backward();
    optimizer.step();
  }
  const [table] = tables;
  assert.ok(table !== undefined);
  const placesOf = (i: number): number[] =>
    [0, 8, 16].map((word) => Number(table.getBigUint64(i * CONSTANTS.RECORD_BYTES + word, true)));
  const numel = 2 * width * width;
  assert.deepEqual([0, 1, 2, 3].map(placesOf), [0, 1, 2, 3].map((i) => [i * numel, (i + 1) * numel, i * numel]));
  cpu.dispose();
});

const COPY = {
  dtype: uint8,
  shape: [3, 2 ** 33],
  dstStrides: [2 ** 33, 1],
  srcStrides: [-(2 ** 40) - 5, 2 ** 31],
  dst: devicePtr(2 ** 41),
  src: devicePtr(2 ** 42 + 1),
};

test("packer() gives a native library all 64 bits of sizes, strides and addresses", () => {
  const words = new Int32Array(LIST_WORDS);
  const numbers = new Float64Array(numbersOf(KERNELS.copyStrided));
  const area = { words, address: 2 ** 44, addressWords: 2 } as const;
  packer("copyStrided", KERNELS.copyStrided, devicePtr(0), area, numbers)(COPY);
  const lists = new BigInt64Array(words.buffer);
  assert.deepEqual([...lists.subarray(0, 6)].map(Number), [...COPY.shape, ...COPY.dstStrides, ...COPY.srcStrides]);
  assert.deepEqual([...numbers], [uint8.code, 2 ** 44, 2, 2 ** 44 + 16, 2 ** 44 + 32, COPY.dst, COPY.src]);
});

test("argumentBlock() gives a card all 64 bits of sizes, strides and addresses", () => {
  const shared = { status: devicePtr(0), firstSample: devicePtr(0), sampleBase: () => 0 };
  const block = argumentBlock("copyStrided", KERNELS.copyStrided, shared);
  block.write(COPY);
  const words = [...new BigInt64Array(block.bytes.buffer)].map(Number);
  assert.deepEqual(words.slice(0, 3), [2, ...COPY.shape]);
  assert.deepEqual(words.slice(9, 11), COPY.dstStrides);
  assert.deepEqual(words.slice(17, 19), COPY.srcStrides);
  assert.deepEqual(words.slice(25), [COPY.dst, COPY.src]);
});

test("packer() refuses what a WASM module would wrap, and names it", () => {
  const words = new Int32Array(LIST_WORDS);
  const area = { words, address: 64, addressWords: 1 } as const;
  const small = {
    ...COPY,
    shape: [3, 4],
    dstStrides: [4, 1],
    srcStrides: [4, 1],
    dst: devicePtr(64),
    src: devicePtr(96),
  };
  const pack = packer("copyStrided", KERNELS.copyStrided, devicePtr(0), area, []);
  pack(small);
  pack({ ...small, srcStrides: [-(2 ** 31), 2 ** 31 - 1] });
  for (
    const [name, wrong] of [
      ["shape", { shape: [3, 2 ** 32] }],
      ["dstStrides", { dstStrides: [2 ** 31, 1] }],
      ["srcStrides", { srcStrides: [-(2 ** 31) - 1, 1] }],
      ["dst", { dst: devicePtr(2 ** 32) }],
    ] as const
  ) {
    assert.throws(
      () => pack({ ...small, ...wrong }),
      (error) => error instanceof UnsupportedError && error.message.includes(`for '${name}'`),
      name,
    );
  }
  const fill = packer("fill", KERNELS.fill, devicePtr(0), area, []);
  fill({ dtype: float32, n: 4, value: 2 ** 40, dst: devicePtr(64) }); // a value, which may be any number
  assert.throws(() => fill({ dtype: float32, n: 2 ** 32, value: 1, dst: devicePtr(64) }), UnsupportedError);
});

test("argmax() and sortPairs refuse rows whose places int32 does not hold", async () => {
  const cpu = await openWasmDevice({ memoryBytes: 2 ** 24 });
  const device = new DryDevice(cpu);
  using x = untouched(device, [1, GIANT + 1], float32);
  assert.throws(() => x.argmax(), ShapeError);
  using chosen = untouched(device, [GIANT / 2, 2], int32);
  assert.throws(() => apply(sortPairsOp, [chosen], { numExperts: 4 }), ShapeError);
  cpu.dispose();
});
