/**
 * The tensor as a handle: life, values in and out, dtypes, printing.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float32, float64, int32, int64, uint8 } from "../../src/dtype.ts";
import { DTypeError, ShapeError, UseAfterDisposeError } from "../../src/errors.ts";
import { full, ones, randn, tensor, zeros } from "../../src/tensor/create.ts";
import { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import { fullLayout } from "../../src/tensor/shard_layout.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";
import { random } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });
const inUse = (): number => device.allocator.stats.inUse;

test("tensor(), full(), zeros(), ones(): shapes, dtypes and values", () => {
  using _frame = scope();
  assert.deepEqual([...tensor(device, [1.5, -2]).toArray()], [1.5, -2]);
  assert.deepEqual(tensor(device, [1, 2, 3, 4, 5, 6], { shape: [2, 3] }).shape, [2, 3]);
  assert.equal(tensor(device, [7], { shape: [] }).item(), 7);
  assert.deepEqual([...tensor(device, [1, 255], { dtype: uint8 }).toArray()], [1, 255]);
  assert.ok(tensor(device, [1], { dtype: int32 }).toArray() instanceof Int32Array);
  assert.deepEqual([...tensor(device, [1, 2.71828], { dtype: bfloat16 }).toArray()], [1, 2.71875]);
  assert.deepEqual([...full(device, [2], -3, int32).toArray()], [-3, -3]);
  assert.deepEqual([...zeros(device, [2], uint8).toArray()], [0, 0]);
  assert.deepEqual([...ones(device, [2], bfloat16).toArray()], [1, 1]);
  assert.equal(zeros(device, [0, 3]).toArray().length, 0);
});

test("tensor() refuses other numbers of elements, and dtypes that it cannot make, keeping nothing", () => {
  const before = inUse();
  {
    using _frame = scope();
    assert.throws(
      () => tensor(device, [1, 2, 3], { shape: [2, 2] }),
      /'tensor' as it must have 3 elements: shapes \[2, 2\]/,
    );
    assert.throws(() => tensor(device, [1], { dtype: int64 }), DTypeError);
    assert.throws(() => tensor(device, [1], { dtype: float64 }), DTypeError);
  }
  assert.equal(inUse(), before);
});

test("randn() depends on its key only, and has mean 0 and deviation 1", () => {
  using _frame = scope();
  const values = Array.from(randn(device, [20_000], 7).toArray());
  assert.deepEqual([...randn(device, [20_000], 7).toArray()], values);
  assert.notDeepEqual([...randn(device, [20_000], 8).toArray()], values);
  assert.deepEqual([...randn(device, [100], 7).toArray()], values.slice(0, 100));
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
  assert.ok(Math.abs(mean) < 0.03 && Math.abs(variance - 1) < 0.03, `${mean} ${variance}`);
});

test("toArray() and item() of what they cannot give", () => {
  using _frame = scope();
  assert.throws(() => zeros(device, [2], int64).toArray(), DTypeError);
  assert.throws(() => zeros(device, [2]).item(), /'item' as it must have one element: shapes \[2\]/);
  assert.throws(() => zeros(device, [0]).item(), ShapeError);
  assert.equal(tensor(device, [4], { shape: [1, 1], dtype: bfloat16 }).item(), 4);
});

test("copyFromHost() overwrites a dense tensor only, by values of its size", () => {
  using _frame = scope();
  const x = zeros(device, [2, 2]);
  const backing = new Float32Array([9, 1, 2, 3, 4, 9]);
  assert.deepEqual([...x.copyFromHost(backing.subarray(1, 5)).toArray()], [1, 2, 3, 4]);
  assert.throws(() => x.copyFromHost(new Float32Array(3)), ShapeError);
  assert.throws(() => x.copyFromHost(new Uint8Array(4)), DTypeError);
  assert.throws(() => x.transpose(0, 1).copyFromHost(new Float32Array(4)), ShapeError);
});

test("dispose() lets go once; use afterwards is refused; memory goes with the last handle", () => {
  const before = inUse();
  const x = tensor(device, [1, 2, 3]);
  const view = x.narrow(0, 1, 2);
  x.dispose();
  x.dispose();
  assert.ok(x.disposed && !view.disposed);
  assert.throws(() => x.toArray(), UseAfterDisposeError);
  assert.throws(() => x.add(1), /A tensor of 'tensor' is used after it was disposed/);
  assert.deepEqual([...view.toArray()], [2, 3]);
  assert.match(x.toString(), /no memory/);
  view.dispose();
  assert.equal(inUse(), before);
});

test("an op on a disposed tensor keeps nothing", () => {
  const before = inUse();
  const x = tensor(device, [1, 2, 3]);
  x.dispose();
  const operations: ((x: Tensor) => Tensor)[] = [
    (t) => t.exp(),
    (t) => t.sum(),
    (t) => t.reshape([3, 1]),
    (t) => t.detach(),
  ];
  for (const run of operations) assert.throws(() => run(x), UseAfterDisposeError);
  assert.equal(inUse(), before);
  const y = tensor(device, [1, 2, 3]);
  using other = y.detach();
  y.dispose();
  for (const run of operations) {
    assert.throws(() => run(y), UseAfterDisposeError, "though another handle keeps the memory");
  }
  other.dispose();
  assert.equal(inUse(), before);
});

test("scope() frees what was made in it, but not what is kept, persistent or of an outer scope", () => {
  const before = inUse();
  let persistent: Tensor;
  {
    using _outer = scope();
    const outside = tensor(device, [1]);
    let kept: Tensor;
    let lost: Tensor;
    {
      using inner = scope();
      lost = outside.add(1);
      kept = outside.add(2);
      persistent = outside.add(3).persist();
      inner.keep(kept, outside);
    }
    assert.ok(lost.disposed && !kept.disposed && !persistent.disposed && !outside.disposed);
    assert.equal(kept.item(), 3);
  }
  assert.equal(persistent.item(), 4);
  assert.equal(inUse(), before + 256);
  persistent.dispose();
  assert.equal(inUse(), before);
});

test("persist() takes a tensor out of an outer scope too", () => {
  let x: Tensor;
  {
    using _outer = scope();
    x = tensor(device, [5]);
    using _inner = scope();
    x.persist();
  }
  assert.equal(x.item(), 5);
  x.dispose();
});

test("scope() ends in the reverse order of its beginning", () => {
  const outer = scope();
  const inner = scope();
  assert.throws(() => outer[Symbol.dispose](), /ArgumentError.*held over an 'await'/s);
  inner[Symbol.dispose]();
  outer[Symbol.dispose]();
});

test("scope() frees what was made when its body fails", () => {
  const before = inUse();
  assert.throws(() => {
    using _frame = scope();
    tensor(device, [1, 2, 3]).exp();
    throw new Error("body");
  }, /body/);
  assert.equal(inUse(), before);
});

test("toString() shortens long dims and shows integers as such", () => {
  using _frame = scope();
  assert.equal(
    tensor(device, [1, 2.5, 3, 4], { shape: [2, 2] }).toString(),
    "Tensor [2, 2] float32 cpu:0 [[1, 2.50000], [3, 4]]",
  );
  const long = tensor(device, Array.from({ length: 9 }, (_, i) => i), { dtype: int32 });
  assert.equal(long.toString(), "Tensor [9] int32 cpu:0 [0, 1, 2, …, 6, 7, 8]");
  assert.equal(tensor(device, [1, 2, 3, 4, 5, 6, 7]).toString(), "Tensor [7] float32 cpu:0 [1, 2, 3, 4, 5, 6, 7]");
  assert.equal(tensor(device, [3], { shape: [] }).toString(), "Tensor [] float32 cpu:0 3");
  assert.equal(zeros(device, [0, 2]).toString(), "Tensor [0, 2] float32 cpu:0 []");
  assert.equal(new Parameter(device, [2]).toString(), "Tensor [2] (no memory)");
});

test("Parameter has no memory until it is given some, and says so", () => {
  const before = inUse();
  const parameter = new Parameter(device, [2, 3]);
  assert.equal(inUse(), before);
  assert.throws(() => parameter.toArray(), /'parameter' has no memory: it has no values; initialize or load it first/);
  parameter.materialize();
  parameter.materialize();
  assert.equal(inUse(), before + 256);
  assert.deepEqual([parameter.dtype, parameter.shape, parameter.requiresGrad], [float32, [2, 3], true]);
  disposeLeaf(parameter);
  assert.equal(inUse(), before);
});

test("Parameter.requiresGrad decides if gradients come, and keeps a present gradient", () => {
  using _frame = scope();
  const x = leaf(device, random([2], 1));
  x.sum().backward();
  x.requiresGrad = false;
  assert.ok(!x.requiresGrad && !x.mul(2).requiresGrad);
  assert.deepEqual([...x.grad?.toArray() ?? []], [1, 1]);
  x.requiresGrad = true;
  x.sum().backward();
  assert.deepEqual([...x.grad?.toArray() ?? []], [2, 2]);
  assert.ok(!new Parameter(device, [1], { requiresGrad: false }).requiresGrad);
  disposeLeaf(x);
});

test("Parameter.storage of a whole parameter is the parameter", () => {
  const x = leaf(device, random([2, 3], 1));
  const { storage } = x;
  assert.deepEqual(storage.shard, fullLayout([2, 3]));
  assert.equal(storage.flatShard.param, x.ptr);
  assert.equal(storage.flatShard.grad, 0);
  {
    using _frame = scope();
    x.sum().backward();
  }
  assert.equal(storage.flatShard.grad, x.grad?.ptr);
  disposeLeaf(x);
});

test("what types would refuse is refused where programs run, and nothing is left of it", async () => {
  using _frame = scope();
  const before = inUse();
  // As from a program whose types nobody has checked.
  const loose: { tensor(...given: readonly unknown[]): unknown } = { ...await import("../../src/tensor/create.ts") };
  assert.throws(
    () => loose.tensor(device, [1], { dtype: "float32" }),
    /a dtype is a value, such as float32 of 'fullyshard'/,
  );
  assert.throws(() => loose.tensor([1, 2]), /call tensor\(device, values\)/);
  assert.throws(() => loose.tensor(device, [[1, 2], [3, 4]]), /give its values flat, and their shape/);
  assert.equal(inUse(), before);
});

test("console.log shows a tensor's values", () => {
  using x = tensor(device, [1, 2]);
  assert.equal(inspect(x), String(x));
});

test("copyFromHost() refuses values of another dtype", () => {
  using _frame = scope();
  assert.throws(() => zeros(device, [3]).copyFromHost(new Int32Array(3)), /DTypeError.*int32/s);
});

test("toString() reads the values that it shows, and no others", async () => {
  const counted = await openDevice("cpu", { memoryBytes: 2 ** 28 });
  let bytes = 0;
  const { copyOut } = counted;
  counted.copyOut = (dst, src) => {
    bytes += dst.byteLength;
    copyOut.call(counted, dst, src);
  };
  const before = counted.allocator.stats;
  {
    using _frame = scope();
    const x = full(counted, [2 ** 25], 0.5);
    x.narrow(0, 2 ** 25 - 1, 1).copyFromHost(Float32Array.of(7));
    assert.equal(
      x.toString(),
      `Tensor [${2 ** 25}] float32 cpu:0 [${Array(3).fill("0.500000").join(", ")}, …, 0.500000, 0.500000, 7]`,
    );
    assert.equal(bytes, 6 * 4);
    bytes = 0;
    const turned = x.reshape([2, 2 ** 12, 2 ** 12]).transpose(1, 2);
    const text = String(turned);
    assert.equal(bytes, 2 * 6 * 6 * 4);
    assert.ok(text.endsWith("0.500000, 0.500000, 7]]]"), text);
    bytes = 0;
    assert.equal(String(x.narrow(0, 5, 1).expand([1000])).split(", ").length, 7);
    assert.equal(bytes, 6 * 4);
  }
  assert.equal(counted.allocator.stats.inUse, before.inUse);
  counted.dispose();
});

test("toString() of dtypes that toArray() refuses", () => {
  using _frame = scope();
  for (const dtype of [int64, float64]) {
    assert.equal(
      String(zeros(device, [2], dtype)),
      `Tensor [2] ${dtype.name} cpu:0 (values that the host does not read)`,
    );
  }
});

test("toString() of every shape has the first and the last of long dims", () => {
  using _frame = scope();
  const shapes = [[], [0], [7], [8], [9, 2], [2, 9], [9, 9], [3, 0, 9], [9, 0], [1, 8, 1, 8], [8, 8, 8], [
    2,
    2,
    2,
    2,
    2,
    1,
    2,
    9,
  ]];
  for (const shape of shapes) {
    const numel = shape.reduce((product, size) => product * size, 1);
    const x = tensor(device, Array.from({ length: numel }, (_, i) => i), { shape, dtype: int32 });
    const part = (dim: number, offset: number, stride: number): string => {
      const size = shape[dim];
      if (size === undefined) return String(offset);
      const step = stride / size;
      const places = size > 7 ? [0, 1, 2, -1, size - 3, size - 2, size - 1] : [...Array(size).keys()];
      return `[${places.map((i) => i < 0 ? "…" : part(dim + 1, offset + i * step, step)).join(", ")}]`;
    };
    assert.equal(String(x), `Tensor [${shape.join(", ")}] int32 cpu:0 ${part(0, 0, numel)}`);
  }
});
