/**
 * Element-wise functions: values and gradients against float64, in every layout and dtype.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float16, float32, int32 } from "../../src/dtype.ts";
import { DTypeError, ShapeError } from "../../src/errors.ts";
import { full, tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose } from "../support/allclose.ts";
import { disposeLeaf, gradcheck, gradcheckLayouts, leaf } from "../support/gradcheck.ts";
import { map, random, zip } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });

/** Φ(x) from the series of erf, exact enough for |x| < 4. */
function normalCdf(x: number): number {
  let [term, total] = [x, x];
  for (let n = 1; n < 80; n++) {
    term *= -x * x / (2 * n);
    total += term / (2 * n + 1);
  }
  return 0.5 + total / Math.sqrt(2 * Math.PI);
}

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
const geluTanh = (x: number): number => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

/** name, method, reference, range of inputs */
const UNARY: readonly (readonly [string, (x: Tensor) => Tensor, (x: number) => number, number, number])[] = [
  ["neg", (x) => x.neg(), (x) => -x, -2, 2],
  ["exp", (x) => x.exp(), Math.exp, -2, 2],
  ["log", (x) => x.log(), Math.log, 0.3, 3],
  ["sqrt", (x) => x.sqrt(), Math.sqrt, 0.3, 3],
  ["rsqrt", (x) => x.rsqrt(), (x) => 1 / Math.sqrt(x), 0.3, 3],
  ["tanh", (x) => x.tanh(), Math.tanh, -3, 3],
  ["sigmoid", (x) => x.sigmoid(), sigmoid, -4, 4],
  ["silu", (x) => x.silu(), (x) => x * sigmoid(x), -4, 4],
  ["gelu", (x) => x.gelu(), (x) => x * normalCdf(x), -3, 3],
  ["gelu tanh", (x) => x.gelu("tanh"), geluTanh, -3, 3],
  ["relu", (x) => x.relu(), (x) => Math.max(x, 0), -2, 2],
  ["square", (x) => x.square(), (x) => x * x, -2, 2],
  ["abs", (x) => x.abs(), Math.abs, -2, 2],
  ["sin", (x) => x.sin(), Math.sin, -4, 4],
  ["cos", (x) => x.cos(), Math.cos, -4, 4],
  ["add scalar", (x) => x.add(1.5), (x) => x + 1.5, -2, 2],
  ["sub scalar", (x) => x.sub(0.75), (x) => x - 0.75, -2, 2],
  ["mul scalar", (x) => x.mul(-2.5), (x) => x * -2.5, -2, 2],
  ["div scalar", (x) => x.div(3), (x) => x / 3, -2, 2],
  ["clamp", (x) => x.clamp(-0.4, 0.8), (x) => Math.min(Math.max(x, -0.4), 0.8), -2, 2],
];

/** name, method, reference, range of inputs */
const BINARY:
  readonly (readonly [string, (a: Tensor, b: Tensor) => Tensor, (a: number, b: number) => number, number, number])[] = [
    ["add", (a, b) => a.add(b), (a, b) => a + b, -2, 2],
    ["sub", (a, b) => a.sub(b), (a, b) => a - b, -2, 2],
    ["mul", (a, b) => a.mul(b), (a, b) => a * b, -2, 2],
    ["div", (a, b) => a.div(b), (a, b) => a / b, 0.4, 2],
    ["maximum", (a, b) => a.maximum(b), Math.max, -2, 2],
    ["minimum", (a, b) => a.minimum(b), Math.min, -2, 2],
  ];

for (const [name, run, f, low, high] of UNARY) {
  test(`${name}: value and gradient in every layout`, () => {
    const check = { label: name, run, reference: (x: Parameters<typeof map>[0]) => map(x, f) };
    gradcheckLayouts(device, check, [[3, 2, 5]], low, high);
    gradcheck(device, { ...check, label: `${name} of a scalar`, inputs: [random([], 5, low, high)] });
    gradcheck(device, { ...check, label: `${name} of nothing`, inputs: [random([0, 3], 5)] });
    gradcheck(device, { ...check, label: `${name} bf16`, inputs: [random([4, 9], 3, low, high)], dtype: bfloat16 });
  });
}

for (const [name, run, f, low, high] of BINARY) {
  test(`${name}: value and gradient in every layout and broadcast`, () => {
    const check = {
      label: name,
      run,
      reference: (a: Parameters<typeof zip>[0], b: Parameters<typeof zip>[0]) => zip(a, b, f),
    };
    gradcheckLayouts(device, check, [[3, 2, 5], [3, 2, 5]], low, high);
    const shapes = [
      [[4, 3], [3]],
      [[3], [2, 4, 3]],
      [[2, 1, 3], [4, 1]],
      [[], [2, 2]],
      [[1, 1], []],
      [[5, 1], [1, 6]],
      [[0, 3], [1, 3]],
    ];
    for (const [a = [], b = []] of shapes) {
      const label = `${name} [${a}] with [${b}]`;
      gradcheck(device, { ...check, label, inputs: [random(a, 1, low, high), random(b, 2, low, high)] });
    }
    const inputs = [random([3, 4], 1, low, high), random([4], 2, low, high)];
    gradcheck(device, { ...check, label: `${name} bf16`, inputs, dtype: bfloat16 });
  });
}

test("maximum(): equals share the gradient in halves", () => {
  const [a, b] = [leaf(device, random([3], 1)), leaf(device, random([3], 1))];
  {
    using _frame = scope();
    a.maximum(b).sum().backward();
    a.minimum(b).sum().backward();
  }
  assert.deepEqual([...a.grad?.toArray() ?? []], [1, 1, 1]);
  assert.deepEqual([...b.grad?.toArray() ?? []], [1, 1, 1]);
  [a, b].forEach(disposeLeaf);
});

test("clamp(): no gradient passes at a limit, and what is not given is no limit, as in PyTorch", () => {
  const values = [-Infinity, -2, -1, 0, 1, 2, Infinity, NaN];
  const cases: readonly (readonly [low: number, high: number, gradient: readonly number[]])[] = [
    [-1, 1, [0, 0, 0, 1, 0, 0, 0, 0]],
    [-1, Infinity, [0, 0, 0, 1, 1, 1, 1, 0]],
    [-Infinity, 1, [1, 1, 1, 1, 0, 0, 0, 0]],
    [-Infinity, Infinity, [1, 1, 1, 1, 1, 1, 1, 0]],
    [1, 1, [0, 0, 0, 0, 0, 0, 0, 0]],
    [1, -1, [0, 0, 0, 0, 0, 0, 0, 0]],
    [Infinity, Infinity, [0, 0, 0, 0, 0, 0, 0, 0]],
    [-Infinity, -Infinity, [0, 0, 0, 0, 0, 0, 0, 0]],
  ];
  for (const dtype of [float32, bfloat16, float16]) {
    for (const [low, high, gradient] of cases) {
      using _frame = scope();
      const x = leaf(device, { shape: [values.length], data: values });
      x.to(dtype).clamp(low, high).sum().backward();
      assert.deepEqual([...x.grad?.toArray() ?? []], gradient, `[${low}, ${high}] of ${dtype.name}`);
      disposeLeaf(x);
    }
  }
});

test("relu() and abs(): gradients at the edges are PyTorch's", () => {
  using _frame = scope();
  const x = leaf(device, { shape: [3], data: [-1, 0, 1] });
  x.relu().sum().backward();
  assert.deepEqual([...x.grad?.toArray() ?? []], [0, 0, 1]);
  x.zeroGrad();
  x.abs().sum().backward();
  assert.deepEqual([...x.grad?.toArray() ?? []], [-1, 0, 1]);
  disposeLeaf(x);
});

test("elementwise functions at their limits neither overflow nor lose the sign", () => {
  using _frame = scope();
  const x = tensor(device, [-200, -100, 0, 100, 200]);
  allClose(x.sigmoid().toArray(), [0, 0, 0.5, 1, 1], { relative: 1e-6, absolute: 1e-30 }, "sigmoid");
  allClose(x.silu().toArray(), [0, 0, 0, 100, 200], { relative: 1e-6, absolute: 1e-30 }, "silu");
  allClose(x.tanh().toArray(), [-1, -1, 0, 1, 1], { relative: 1e-6, absolute: 0 }, "tanh");
  allClose(x.gelu("tanh").toArray(), [0, 0, 0, 100, 200], { relative: 1e-6, absolute: 1e-30 }, "gelu");
  assert.deepEqual([...x.exp().toArray()].map((v) => v === Infinity || v === 0 || v === 1), [
    true,
    false,
    true,
    true,
    true,
  ]);
});

test("silu() is as near to the true values as x / (1 + e^-x), of which each step is rounded once", () => {
  using _frame = scope();
  const { data: inputs } = random([100_000], 5, -4, 4);
  const stepwise = inputs.map((x) => Math.fround(x / Math.fround(1 + Math.fround(Math.exp(-x)))));
  const offBy = (values: ArrayLike<number>): number =>
    Math.sqrt(inputs.reduce((sum, x, i) => sum + ((values[i] ?? NaN) - x * sigmoid(x)) ** 2, 0));
  const found = tensor(device, inputs).silu();
  assert.ok(offBy(found.toArray()) <= 1.05 * offBy(stepwise), `${offBy(found.toArray())} and ${offBy(stepwise)}`);
});

test("NaN passes through every function", () => {
  using _frame = scope();
  const x = tensor(device, [NaN, 1, NaN, 1, NaN]);
  for (const [name, run] of UNARY) assert.ok(Number.isNaN(run(x).toArray()[0]), name);
  for (const [name, run] of BINARY) {
    assert.ok(Number.isNaN(run(x, full(device, [5], 2)).toArray()[0]), name);
    assert.ok(Number.isNaN(run(full(device, [5], 2), x).toArray()[4]), name);
  }
});

test("add() and others refuse shapes and dtypes that do not fit", () => {
  using _frame = scope();
  const x = zeros(device, [2, 3]);
  assert.throws(() => x.add(zeros(device, [2])), ShapeError);
  assert.throws(
    () => x.add(zeros(device, [2])),
    /'add' as dims must be equal or 1 to broadcast: shapes \[2, 3\] and \[2\]/,
  );
  assert.throws(() => x.mul(zeros(device, [3], bfloat16)), DTypeError);
  assert.throws(() => x.mul(zeros(device, [3], bfloat16)), /'mul'.*dtypes float32 and bfloat16/);
  assert.throws(() => zeros(device, [2], int32).exp(), /'exp' as the input must be a float: dtypes int32/);
  assert.equal(x.dtype, float32);
});

test("div(number) divides, and does not multiply by a reciprocal", () => {
  using _frame = scope();
  assert.deepEqual([...tensor(device, [5, 7, 10]).div(3).toArray()], [5 / 3, 7 / 3, 10 / 3].map(Math.fround));
  assert.equal(zeros(device, [1]).div(1e-39).item(), 0);
});

test("div() by a number that the dtype does not hold divides by that number, as PyTorch does", () => {
  const x = leaf(device, { shape: [3], data: [0.0999755859375, 65504, 7] });
  {
    using _frame = scope();
    const narrow = x.to(float16);
    assert.deepEqual([...narrow.div(70000).toArray()], [1.430511474609375e-6, 0.935546875, 0.00010001659393310547]);
    assert.deepEqual([...narrow.div(1e-8).toArray()], [Infinity, Infinity, Infinity]);
    assert.deepEqual([...narrow.to(bfloat16).div(3.14159).toArray()], [0.031982421875, 20864, 2.234375]);
    narrow.div(70000).backward(full(device, [3], 7000, float16));
  }
  assert.deepEqual([...x.grad?.toArray() ?? []], [0.0999755859375, 0.0999755859375, 0.0999755859375]);
  disposeLeaf(x);
});

test("maximum() and minimum(): gradients that the dtype does not hold twice, and of NaN and infinity, are PyTorch's", () => {
  const [left, right] = [[1, 2, 3, NaN, Infinity, 1], [2, 2, 1, 1, Infinity, NaN]];
  for (const name of ["maximum", "minimum"] as const) {
    const [a, b] = [left, right].map((data) => leaf(device, { shape: [6], data }));
    assert.ok(a !== undefined && b !== undefined);
    {
      using _frame = scope();
      const seed = tensor(device, [60000, 60000, 60000, 2, 60000, 4], { dtype: float16 });
      a.to(float16)[name](b.to(float16)).backward(seed);
    }
    const [first, last] = name === "maximum" ? [0, 60000] : [60000, 0];
    assert.deepEqual([...a.grad?.toArray() ?? []], [first, 30000, last, 2, 30000, 4], name);
    assert.deepEqual([...b.grad?.toArray() ?? []], [last, 30000, first, 2, 30000, 4], name);
    disposeLeaf(a);
    disposeLeaf(b);
  }
});
