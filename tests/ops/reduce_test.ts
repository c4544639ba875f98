/**
 * Sums, means, maxima and argmax along any dims.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, int32 } from "../../src/dtype.ts";
import { DTypeError, ShapeError } from "../../src/errors.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { disposeLeaf, gradcheck, gradcheckLayouts, leaf } from "../support/gradcheck.ts";
import { type Nd, random, reduce, sum } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });

type Dims = readonly number[] | undefined;

const KINDS: readonly (readonly [
  string,
  (x: Tensor, dims: Dims, keep: boolean) => Tensor,
  (values: readonly number[]) => number,
])[] = [
  ["sum", (x, dims, keep) => x.sum(dims, keep), sum],
  ["mean", (x, dims, keep) => x.mean(dims, keep), (values) => sum(values) / values.length],
  ["max", (x, dims, keep) => x.max(dims, keep), (values) => Math.max(...values)],
];

for (const [name, run, f] of KINDS) {
  test(`${name}(): value and gradient over all sets of dims in every layout`, () => {
    for (const dims of [undefined, [], [0], [1], [2], [0, 1], [0, 2], [1, 2], [2, 0, 1]]) {
      for (const keep of [false, true]) {
        gradcheckLayouts(device, {
          label: `${name} over ${dims} ${keep}`,
          run: (x) => run(x, dims, keep),
          // An empty list stands for all dims, as in PyTorch.
          reference: (x) => reduce(x, dims?.length === 0 ? undefined : dims, keep, f),
        }, [[3, 4, 2]]);
      }
    }
  });

  test(`${name}(): scalars, 4 dims with gaps, negative dims, bf16`, () => {
    const reference = (dims: Dims) => (x: Nd): Nd => reduce(x, dims, false, f);
    const check = (label: string, x: Nd, dims: Dims, meant: Dims = dims): void =>
      gradcheck(device, {
        label: `${name} ${label}`,
        inputs: [x],
        run: (t) => run(t, dims, false),
        reference: reference(meant),
      });
    check("scalar", random([], 1), undefined);
    check("4 dims", random([2, 3, 2, 4], 1), [1, 3]);
    check("4 dims, outer and middle", random([2, 3, 2, 4], 1), [0, 2]);
    check("negative dims", random([2, 3, 4], 1), [-1, -3], [2, 0]);
    check("size 1", random([1, 3, 1], 1), [0, 2]);
    gradcheck(device, {
      label: `${name} bf16`,
      inputs: [random([3, 5], 2)],
      run: (x) => run(x, [1], false),
      reference: reference([1]),
      dtype: bfloat16,
    });
  });
}

test("sum() and mean() of a dim given as a number, chained through views", () => {
  gradcheck(device, {
    label: "sum of mean",
    inputs: [random([3, 4, 5], 1)],
    run: (x) => x.transpose(0, 2).mean(1).narrow(0, 1, 3).sum(0, true),
    reference: (x) => {
      const means = reduce(x, [1], false, (values) => sum(values) / 4);
      const data = [0, 1, 2].map((i) => sum([1, 2, 3].map((j) => means.data[i * 5 + j] ?? NaN)));
      return { shape: [1, 3], data };
    },
  });
});

test("sum() of no elements is 0, with a gradient of no elements", () => {
  using _frame = scope();
  const x = leaf(device, random([0, 3], 1));
  assert.equal(x.sum().item(), 0);
  assert.deepEqual([...x.sum(0).toArray()], [0, 0, 0]);
  x.sum().backward();
  assert.equal(x.grad?.numel, 0);
  assert.ok(Number.isNaN(x.mean().item()));
  disposeLeaf(x);
});

test("sum() adds in float64: a large and many small float32 are not lost", () => {
  using _frame = scope();
  const values = new Float32Array(100_001).fill(0.01);
  values[0] = 1e6;
  const exact = values.reduce((total, value) => total + value, 0);
  assert.equal(tensor(device, values).sum().item(), Math.fround(exact));
});

test("max(): equals share the gradient", () => {
  const x = leaf(device, { shape: [2, 4], data: [1, 3, 3, 2, 5, 5, 5, 5] });
  {
    using _frame = scope();
    x.max(1).sum().backward();
  }
  assert.deepEqual([...x.grad?.toArray() ?? []], [0, 0.5, 0.5, 0, 0.25, 0.25, 0.25, 0.25]);
  disposeLeaf(x);
});

test("argmax() is the first of equals, in any layout, and leaves nothing behind", () => {
  const before = device.allocator.stats.inUse;
  {
    using x = tensor(device, [1, 5, 5, 7, 7, 2], { shape: [2, 3] });
    using dense = x.argmax();
    assert.deepEqual([...dense.toArray()], [1, 0]);
    assert.equal(dense.dtype, int32);
    using turned = x.transpose(0, 1);
    using indices = turned.argmax();
    assert.deepEqual([...indices.toArray()], [1, 1, 0]);
  }
  assert.equal(device.allocator.stats.inUse, before);
  using _frame = scope();
  assert.throws(() => zeros(device, [2, 0]).argmax(), ShapeError);
});

test("sum() and others refuse dims that are not there, and integers", () => {
  using _frame = scope();
  assert.throws(() => zeros(device, [2, 3]).sum(2), /'sum' as dim 2 must be in \[-2, 2\): shapes \[2, 3\]/);
  assert.throws(() => zeros(device, [2, 3]).mean([0, -3]), ShapeError);
  assert.throws(() => zeros(device, [2, 3], int32).sum(), DTypeError);
});

test("max(), min() and argmax() refuse a dim without elements, as PyTorch does, and give nothing for no rows", () => {
  using _frame = scope();
  for (const name of ["max", "min"] as const) {
    const run = (shape: readonly number[], dims?: number | readonly number[]): Tensor =>
      zeros(device, shape)[name](dims);
    const refused: readonly (readonly [readonly number[], (number | readonly number[])?])[] = [
      ...[[[0]], [[2, 0]], [[0, 2]], [[0, 0]]] as const,
      ...[[[2, 0], 1], [[2, 0], []], [[2, 0], -1], [[0, 2], 0], [[0, 0], 0], [[2, 0, 3], [0, 1]], [[3, 0], [
        0,
        1,
      ]]] as const,
    ];
    for (const [shape, dims] of refused) {
      assert.throws(
        () => run(shape, dims),
        { name: "ShapeError", message: /must have elements/ },
        `[${shape}] ${dims}`,
      );
    }
    assert.deepEqual([...run([2, 0], 0).shape], [0]);
    assert.deepEqual([...run([0, 2], 1).shape], [0]);
    assert.equal(run([]).item(), 0);
  }
  assert.throws(() => zeros(device, [0]).argmax(), ShapeError);
  assert.throws(() => zeros(device, [0, 2]).argmax(0), ShapeError);
  assert.throws(() => zeros(device, [2, 0]).argmax(1), ShapeError);
  assert.deepEqual([...zeros(device, [0, 2]).argmax(1).shape], [0]);
  assert.deepEqual([...zeros(device, [2, 0]).argmax(0).shape], [0]);
});

test("what else goes along a dim without elements is PyTorch's: 0 of sums, NaN of means, nothing of softmax", () => {
  using _frame = scope();
  const x = zeros(device, [2, 0]);
  assert.deepEqual([...x.sum(1).toArray()], [0, 0]);
  for (const nothing of [x.mean(1), x.var(1), x.std(1)]) assert.deepEqual([...nothing.toArray()], [NaN, NaN]);
  for (const empty of [x.softmax(), x.logSoftmax(), x.cumsum(1), x.softmax(0), x.cumsum(0)]) {
    assert.deepEqual([...empty.shape], [2, 0]);
  }
});

test("sum() refuses a dim that is named twice, as PyTorch does", () => {
  using _frame = scope();
  const x = zeros(device, [2, 3]);
  for (const dims of [[0, 0], [1, -1]]) assert.throws(() => x.sum(dims), /must name each dim once/);
});
