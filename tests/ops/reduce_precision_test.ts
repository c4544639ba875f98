/**
 * A reduction rounds once, whatever dims it goes over and however the input lies: sums and means of all sets of dims, the sums of
 * gradients over broadcast dims, counts of equal extremes, products summed over a batch, a bias on a product.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, type DType, float16, float32 } from "../../src/dtype.ts";
import { where } from "../../src/nn/functional.ts";
import { linearOp } from "../../src/ops/matmul.ts";
import { applyOne } from "../../src/tensor/apply.ts";
import { full, ones, tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { pick, rounding } from "../conformance/kernels/case.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";
import { expand, type Nd, permute, random, reduce, sum } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 2 ** 28 });
after(() => device.dispose());

const DTYPES = [float16, bfloat16, float32];

/** Values that a dtype holds. */
function stored({ shape, data }: Nd, dtype: DType): Nd {
  return { shape, data: data.map(rounding(dtype)) };
}

function made({ shape, data }: Nd, dtype: DType): Tensor {
  return tensor(device, data, { shape, dtype });
}

/** All sets of the dims of a tensor. */
function subsets(ndim: number): number[][] {
  return Array.from({ length: 2 ** ndim }, (_, bits) => [...Array(ndim).keys()].filter((dim) => bits >> dim & 1));
}

function equal(got: Tensor, { shape, data }: Nd, dtype: DType, label: string): void {
  assert.deepEqual([...got.shape], [...shape], `${label}: shape`);
  const [values, round] = [got.toArray(), rounding(dtype)];
  data.forEach((value, i) => assert.equal(pick(values, i), round(value), `${label}: element ${i}`));
}

test("sum() and mean() over dims that are not neighbors, whose partial sums the dtype does not hold", () => {
  using _frame = scope();
  const x = tensor(device, [60000, 10000, -30000, 0], { shape: [2, 1, 2], dtype: float16 });
  assert.deepEqual([...x.sum([0, 2]).toArray()], [40000]);
  assert.deepEqual([...x.sum([0, 2], true).toArray()], [40000]);
  assert.deepEqual([...x.sum().toArray()], [40000]);
  const apart = tensor(device, [60000, 1, 10000, 2, -30000, 3, 0, 4], { shape: [2, 2, 2], dtype: float16 });
  assert.deepEqual([...apart.permute([0, 2, 1]).sum([0, 2]).toArray()], [40000, 10]);
  assert.deepEqual([...apart.sum([0, 1]).toArray()], [40000, 10]);
  const many = ones(device, [512, 2, 257], bfloat16);
  assert.deepEqual([...many.sum([0, 2]).toArray()], [131072, 131072]);
  assert.deepEqual([...many.mean([0, 2]).toArray()], [1, 1]);
  const large = full(device, [3, 2, 3], 60000, float16);
  assert.deepEqual([...large.mean([0, 2]).toArray()], [60000, 60000]);
});

for (const dtype of DTYPES) {
  test(`sum(), mean(), max() and min() round once over every set of dims in every layout, ${dtype.name}`, () => {
    const shapes = [[3, 4, 5], [2, 1, 3, 2], [2, 3, 2, 2, 3], [7], [1, 1, 2]];
    for (const [seed, shape] of shapes.entries()) {
      const x = stored(random(shape, seed + 1, -1000, 3000), dtype);
      const order = [...shape.keys()].reverse();
      const moved = stored(random(order.map((dim) => pick(shape, dim)), seed + 11, -1000, 3000), dtype);
      const broad = stored(random(shape.map((size, dim) => dim === 1 ? 1 : size), seed + 21, -1000, 3000), dtype);
      using _frame = scope();
      const layouts = [
        ["dense", made(x, dtype), x],
        ["permuted", made(moved, dtype).permute(order), permute(moved, order)],
        ["expanded", made(broad, dtype).expand(shape), expand(broad, shape)],
      ] as const;
      for (const [layout, t, nd] of layouts) {
        for (const dims of subsets(shape.length)) {
          for (const keep of [false, true]) {
            // An empty list stands for all dims, as in PyTorch.
            const meant = dims.length === 0 ? undefined : dims;
            const label = `[${shape.join()}] over [${dims.join()}], ${layout}, ${keep}`;
            using _inner = scope();
            equal(t.sum(dims, keep), reduce(nd, meant, keep, sum), dtype, `sum of ${label}`);
            equal(t.mean(dims, keep), reduce(nd, meant, keep, (v) => sum(v) / v.length), dtype, `mean of ${label}`);
            equal(t.max(dims, keep), reduce(nd, meant, keep, (v) => Math.max(...v)), dtype, `max of ${label}`);
            equal(t.min(dims, keep), reduce(nd, meant, keep, (v) => Math.min(...v)), dtype, `min of ${label}`);
          }
        }
      }
    }
  });

  test(`gradients of what was broadcast round once, ${dtype.name}`, () => {
    const shape = [4, 3, 5, 2];
    const ways: readonly (readonly [string, (small: Tensor, whole: Tensor) => Tensor])[] = [
      ["expand", (small) => small.expand(shape)],
      ["add", (small, whole) => small.add(whole)],
      ["sub", (small, whole) => small.sub(whole)],
      ["where", (small, whole) => where(whole.eq(whole), small, whole)],
    ];
    for (const small of [[1, 3, 1, 2], [4, 1, 5, 1], [1, 1, 1, 1], [5, 1], [3, 1, 1], [], [1, 3, 5, 1], [2]]) {
      const seed = stored(random(shape, small.length + 5, -900, 2500), dtype);
      const lead = shape.length - small.length;
      const dims = [...shape.keys()].filter((dim) => dim < lead || small[dim - lead] === 1);
      const expected = { shape: small, data: reduce(seed, dims, false, sum).data };
      for (const [name, run] of ways) {
        const x = leaf(device, random(small, 3));
        {
          using _frame = scope();
          run(x.to(dtype), zeros(device, shape, dtype)).backward(made(seed, dtype));
        }
        assert.ok(x.grad !== undefined);
        equal(x.grad, expected, dtype, `${name} of [${small.join()}]`);
        disposeLeaf(x);
      }
    }
  });
}

test("matmul(): a gradient summed over a batch rounds once", () => {
  const weight = leaf(device, { shape: [1, 1], data: [1] });
  {
    using _frame = scope();
    const x = tensor(device, [60000, 10000, -30000, -20000], { shape: [4, 1, 1], dtype: float16 });
    x.matmul(weight.to(float16)).backward(full(device, [4, 1, 1], 2, float16));
  }
  assert.deepEqual([...weight.grad?.toArray() ?? []], [40000]);
  disposeLeaf(weight);
  const row = leaf(device, { shape: [1, 1, 1], data: [1] });
  {
    using _frame = scope();
    const y = tensor(device, [60000, 10000, -30000, -20000], { shape: [2, 2, 1, 1], dtype: float16 });
    row.to(float16).matmul(y).backward(full(device, [2, 2, 1, 1], 2, float16));
  }
  assert.deepEqual([...row.grad?.toArray() ?? []], [40000]);
  disposeLeaf(row);
});

test("linear: the bias is part of the sum that is rounded once", () => {
  using _frame = scope();
  for (const rows of [1, 5]) {
    const x = tensor(device, new Array<number>(2 * rows).fill(48000), { shape: [rows, 2], dtype: float16 });
    const bias = tensor(device, [-60000, 0.5], { dtype: float16 });
    const weight = tensor(device, [1, 1, 0, 1], { shape: [2, 2], dtype: float16 });
    const out = applyOne(linearOp, [x, weight, bias], "outIn").toArray();
    assert.deepEqual([...out], new Array<number[]>(rows).fill([36000, 48000]).flat());
    const nothing = applyOne(
      linearOp,
      [zeros(device, [rows, 0], float16), zeros(device, [2, 0], float16), bias],
      "outIn",
    );
    assert.deepEqual([...nothing.toArray()], new Array<number[]>(rows).fill([-60000, 0.5]).flat());
  }
});

test("max(): more equals than the dtype counts share the gradient", () => {
  for (const [dtype, n] of [[float16, 70000], [bfloat16, 300]] as const) {
    const x = leaf(device, { shape: [n], data: new Array<number>(n).fill(2) });
    {
      using _frame = scope();
      x.to(dtype).max().backward(full(device, [], 512, dtype));
    }
    const [share] = x.grad?.toArray() ?? [];
    assert.equal(share, rounding(dtype)(Math.fround(Math.fround(1 / n) * 512)), dtype.name);
    disposeLeaf(x);
  }
});

test("std() of float16 whose variance float16 does not hold", () => {
  using _frame = scope();
  const x = tensor(device, [-600, 600, -600, 600], { dtype: float16 });
  assert.deepEqual([...x.std(undefined, false, 0).toArray()], [600]);
});
