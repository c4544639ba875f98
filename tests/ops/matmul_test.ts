/**
 * Matrix products and the linear layer: values and gradients in every layout, with broadcast and empty dims.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float32 } from "../../src/dtype.ts";
import { DTypeError, ShapeError } from "../../src/errors.ts";
import { linearOp } from "../../src/ops/matmul.ts";
import { applyOne } from "../../src/tensor/apply.ts";
import { full, tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose, toleranceOf } from "../support/allclose.ts";
import { disposeLeaf, gradcheck, gradcheckLayouts, leaf } from "../support/gradcheck.ts";
import { matmul, type Nd, permute, random, zip } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });

const linear = (...inputs: Tensor[]): Tensor => applyOne(linearOp, inputs, "outIn");

function linearReference(x: Nd, weight: Nd, bias?: Nd): Nd {
  const rows = x.shape.length === 1 ? { shape: [1, ...x.shape], data: x.data } : x;
  const product = matmul(rows, permute(weight, [1, 0]));
  const y = { shape: [...x.shape.slice(0, -1), weight.shape[0] ?? 0], data: product.data };
  return bias === undefined ? y : zip(y, bias, (a, b) => a + b);
}

test("matmul(): value and gradient in every layout", () => {
  const check = { label: "matmul", run: (a: Tensor, b: Tensor) => a.matmul(b), reference: matmul };
  gradcheckLayouts(device, check, [[4, 5], [5, 3]]);
  gradcheckLayouts(device, check, [[2, 4, 5], [2, 5, 3]]);
  gradcheckLayouts(device, check, [[2, 3, 4, 5], [2, 3, 5, 2]]);
});

test("matmul(): leading dims broadcast, and dims of 0 and 1 are dims like others", () => {
  const shapes = [
    [[2, 4, 5], [5, 3]],
    [[4, 5], [2, 5, 3]],
    [[2, 1, 4, 5], [3, 5, 2]],
    [[1, 4, 5], [6, 5, 1]],
    [[3, 1, 1], [1, 1]],
    [[1, 7], [7, 1]],
    [[7, 1], [1, 7]],
    [[0, 3], [3, 2]],
    [[2, 0], [0, 3]],
    [[2, 3], [3, 0]],
    [[0, 2, 3], [3, 2]],
  ];
  for (const [a = [], b = []] of shapes) {
    const inputs = [random(a, 1), random(b, 2)];
    gradcheck(device, { label: `matmul [${a}] [${b}]`, inputs, run: (x, y) => x.matmul(y), reference: matmul });
  }
});

test("matmul(): operands of different layouts, and one tensor as both", () => {
  const transposed = (x: Nd): Nd => permute(x, [0, 2, 1]);
  gradcheck(device, {
    label: "a bᵀ, heads in the middle",
    inputs: [random([2, 5, 3, 4], 1), random([2, 6, 3, 4], 2)],
    run: (a, b) => a.permute([0, 2, 1, 3]).matmul(b.permute([0, 2, 3, 1])),
    reference: (a, b) => matmul(permute(a, [0, 2, 1, 3]), permute(b, [0, 2, 3, 1])),
  });
  gradcheck(device, {
    label: "x xᵀ",
    inputs: [random([2, 3, 4], 3)],
    run: (x) => x.matmul(x.transpose(1, 2)),
    reference: (x) => matmul(x, transposed(x)),
  });
  gradcheck(device, {
    label: "x x",
    inputs: [random([4, 4], 3)],
    run: (x) => x.matmul(x),
    reference: (x) => matmul(x, x),
  });
});

test("matmul(): sizes around the kernel's tiles", () => {
  const turned = (x: Nd): Nd => permute(x, [1, 0]);
  for (const [m, k, n] of [[1, 1, 1], [3, 17, 9], [8, 64, 16], [9, 33, 31], [17, 5, 40], [65, 3, 2]] as const) {
    const [a, b, seed] = [random([m, k], 1), random([k, n], 2), random([m, n], 3)];
    const [left, right] = [leaf(device, a), leaf(device, b)];
    {
      using _frame = scope();
      const y = left.matmul(right);
      allClose(y.toArray(), matmul(a, b).data, toleranceOf(float32), `${m} ${k} ${n}`);
      y.backward(tensor(device, seed.data, { shape: [m, n] }));
    }
    allClose(left.grad?.toArray() ?? [], matmul(seed, turned(b)).data, toleranceOf(float32), `${m} ${k} ${n}: left`);
    allClose(right.grad?.toArray() ?? [], matmul(turned(a), seed).data, toleranceOf(float32), `${m} ${k} ${n}: right`);
    [left, right].forEach(disposeLeaf);
  }
});

test("matmul() and linear in bf16", () => {
  gradcheck(device, {
    label: "matmul bf16",
    inputs: [random([2, 4, 5], 1), random([5, 3], 2)],
    run: (a, b) => a.matmul(b),
    reference: matmul,
    dtype: bfloat16,
  });
  gradcheck(device, {
    label: "linear bf16",
    inputs: [random([2, 4, 5], 1), random([3, 5], 2), random([3], 4)],
    run: linear,
    reference: linearReference,
    dtype: bfloat16,
  });
});

test("linear: value and gradient in every layout, with and without bias", () => {
  gradcheckLayouts(device, { label: "linear", run: linear, reference: linearReference }, [[2, 4, 5], [3, 5], [3]]);
  gradcheckLayouts(device, { label: "linear without bias", run: linear, reference: linearReference }, [[4, 5], [3, 5]]);
  for (const shape of [[5], [1, 5], [0, 5], [2, 0, 5]]) {
    const inputs = [random(shape, 1), random([3, 5], 2), random([3], 3)];
    gradcheck(device, { label: `linear of [${shape}]`, inputs, run: linear, reference: linearReference });
  }
});

test("linear of a weight [in, out]: value and gradient in every layout, with and without bias", () => {
  const run = (...inputs: Tensor[]): Tensor => applyOne(linearOp, inputs, "inOut");
  const of = (x: Nd, weight: Nd, bias?: Nd): Nd => linearReference(x, permute(weight, [1, 0]), bias);
  gradcheckLayouts(device, { label: "linear", run, reference: of }, [[2, 4, 5], [5, 3], [3]]);
  gradcheckLayouts(device, { label: "linear without bias", run, reference: of }, [[4, 5], [5, 3]]);
  const inputs = [random([3, 4], 1), random([4, 2], 2)];
  gradcheck(device, { label: "bf16", inputs, run, reference: of, dtype: bfloat16 });
  using _frame = scope();
  const [x, weight] = [zeros(device, [2, 3]), zeros(device, [2, 3])];
  assert.throws(() => run(x, weight), /'linear' as the last dim must equal the weight's/);
});

test("linear gives gradients only where they are needed", () => {
  const [x, weight, bias] = [
    leaf(device, random([4, 5], 1)),
    leaf(device, random([3, 5], 2)),
    leaf(device, random([3], 3)),
  ];
  const leaves = [x, weight, bias];
  for (const frozen of leaves) {
    frozen.requiresGrad = false;
    {
      using _frame = scope();
      linear(...leaves).sum().backward();
    }
    for (const one of leaves) assert.equal(one.grad === undefined, one === frozen);
    frozen.requiresGrad = true;
    for (const one of leaves) one.zeroGrad();
  }
  leaves.forEach(disposeLeaf);
});

test("linear of no input or output features, or of no rows, has gradients of zeros", () => {
  const garbage = full(device, [64], 7);
  garbage.dispose(); // what is not written would show
  for (const [rows, inFeatures, outFeatures] of [[3, 4, 0], [3, 0, 4], [0, 3, 4], [3, 0, 0]] as const) {
    const shapes = [[rows, inFeatures], [outFeatures, inFeatures], [outFeatures]];
    const leaves = shapes.map((shape) => leaf(device, random(shape, 1)));
    const [x, weight, bias] = leaves;
    if (x === undefined || weight === undefined || bias === undefined) return assert.fail("three leaves");
    {
      using _frame = scope();
      const y = linear(x, weight, bias);
      assert.deepEqual([...y.toArray()], Array.from({ length: rows }, () => [...bias.toArray()]).flat());
      y.sum().backward();
    }
    const label = `[${rows}, ${inFeatures}] by ${outFeatures}`;
    assert.deepEqual([...x.grad?.toArray() ?? []], new Array(x.numel).fill(0), `x ${label}`);
    assert.deepEqual([...weight.grad?.toArray() ?? []], new Array(weight.numel).fill(0), `weight ${label}`);
    assert.deepEqual([...bias.grad?.toArray() ?? []], new Array(outFeatures).fill(rows), `bias ${label}`);
    leaves.forEach(disposeLeaf);
  }
});

test("matmul() and linear refuse shapes and dtypes that do not fit", () => {
  using _frame = scope();
  const z = (...shape: number[]): Tensor => zeros(device, shape);
  assert.throws(() => z(4, 8).matmul(z(7, 2)), ShapeError);
  assert.throws(() => z(4, 8).matmul(z(7, 2)), /'matmul' as inner dims must match: shapes \[4, 8\] and \[7, 2\]/);
  assert.throws(() => z(4).matmul(z(4, 2)), ShapeError);
  assert.throws(() => z(2, 4, 8).matmul(z(3, 8, 2)), /broadcast/);
  assert.throws(() => z(2, 3).matmul(zeros(device, [3, 2], bfloat16)), DTypeError);
  assert.throws(
    () => linear(z(2, 3), z(4, 5)),
    /'linear' as the last dim must equal the weight's: shapes \[2, 3\] and \[4, 5\]/,
  );
  assert.throws(() => linear(z(2, 3), z(4, 3), z(3)), /the bias must be \[4\]/);
  assert.throws(() => linear(z(2, 3), zeros(device, [4, 3], bfloat16)), DTypeError);
});

test("matmul() and linear keep each factor for the other's gradient alone, so none of a frozen weight's inputs", () => {
  const [x, w] = [leaf(device, random([64, 32], 1)), leaf(device, random([32, 32], 2))];
  const bytes = 64 * 32 * 4;
  /** Bytes in use until the backward, and the gradients. */
  const kept = (run: (h: Tensor, w: Tensor) => Tensor, frozen: "weight" | "input" | undefined) => {
    const before = device.allocator.stats.inUse;
    const made = (): Tensor => {
      using inner = scope();
      // The product is of a tensor that nothing else needs.
      const hidden = (frozen === "input" ? x.detach() : x).add(x.detach());
      const out = run(hidden, frozen === "weight" ? w.detach() : w);
      inner.keep(out);
      return out;
    };
    using _frame = scope();
    const out = made();
    const held = device.allocator.stats.inUse - before;
    out.sum().backward();
    const gradients = [x, w].map(({ grad }) => grad?.toArray());
    for (const one of [x, w]) one.zeroGrad();
    return { held, gradients };
  };
  for (const run of [linear, (a: Tensor, b: Tensor) => a.matmul(b)]) {
    const [both, weight, input] = [kept(run, undefined), kept(run, "weight"), kept(run, "input")];
    assert.equal(both.held - weight.held, bytes);
    assert.equal(input.held, both.held);
    assert.deepEqual(weight.gradients, [both.gradients[0], undefined]);
    assert.deepEqual(input.gradients, [undefined, both.gradients[1]]);
  }
  [x, w].forEach(disposeLeaf);
});
