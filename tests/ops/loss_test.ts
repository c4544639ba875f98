/**
 * Cross-entropy from logits and fused with the output projection.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { noGrad } from "../../src/autograd/mode.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, type DType, float16, float32, int32 } from "../../src/dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../../src/errors.ts";
import { crossEntropy, linearCrossEntropy } from "../../src/nn/functional.ts";
import { linearOp } from "../../src/ops/matmul.ts";
import { applyOne } from "../../src/tensor/apply.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose, allCloseToScale, toleranceOf } from "../support/allclose.ts";
import { disposeLeaf, gradcheck, gradcheckLayouts, leaf, numericGradient } from "../support/gradcheck.ts";
import { at, build, matmul, type Nd, permute, random } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 512 * 2 ** 20 });

function reference(labels: readonly number[], ignore: number = -100) {
  return (logits: Nd): Nd => {
    const cols = logits.shape.at(-1) ?? 1;
    let total = 0;
    for (const [row, label] of labels.entries()) {
      if (label === ignore) continue;
      const scores = logits.data.slice(row * cols, (row + 1) * cols);
      const top = Math.max(...scores);
      total += top + Math.log(scores.reduce((sum, score) => sum + Math.exp(score - top), 0)) - (scores[label] ?? NaN);
    }
    return { shape: [], data: [total] };
  };
}

const LABELS = [1, 4, -100, 0, 2, -100];
const labelsOf = (labels: readonly number[], shape: readonly number[] = [labels.length]): Tensor =>
  tensor(device, labels, { shape, dtype: int32 });

test("crossEntropy(): value and gradient in every layout, ignored rows left out", () => {
  const run = (logits: Tensor): Tensor => crossEntropy(logits, labelsOf(LABELS, [2, 3]));
  gradcheckLayouts(device, { label: "crossEntropy", run, reference: reference(LABELS) }, [[2, 3, 5]], -3, 3);
  gradcheck(device, {
    label: "crossEntropy ignoring 4",
    inputs: [random([6, 5], 1)],
    run: (logits) => crossEntropy(logits, labelsOf([4, 4, 3, 0, 2, 4]), 4),
    reference: reference([4, 4, 3, 0, 2, 4], 4),
  });
  gradcheck(device, {
    label: "crossEntropy times 3",
    inputs: [random([6, 5], 1)],
    run: (logits) => crossEntropy(logits, labelsOf(LABELS)).mul(3),
    reference: (logits) => ({ shape: [], data: reference(LABELS)(logits).data.map((v) => 3 * v) }),
  });
});

/** PyTorch's definition of smoothed labels, and the square of the logarithm of the sum. */
function withTerms(labels: readonly number[], labelSmoothing: number, zLoss: number): (logits: Nd) => Nd {
  return ({ shape, data }) => {
    const cols = shape.at(-1) ?? 0;
    const losses = labels.map((label, r) => {
      if (label === -100) return 0;
      const x = Array.from(data).slice(r * cols, (r + 1) * cols);
      const logSum = Math.log(x.reduce((sum, v) => sum + Math.exp(v), 0));
      const mean = x.reduce((sum, v) => sum + logSum - v, 0) / cols;
      return (1 - labelSmoothing) * (logSum - (x[label] ?? NaN)) + labelSmoothing * mean + zLoss * logSum ** 2;
    });
    return { shape: [], data: [losses.reduce((sum, loss) => sum + loss, 0)] };
  };
}

for (const [labelSmoothing, zLoss] of [[0.1, 0], [0, 0.01], [0.3, 0.2], [1, 0]] as const) {
  const terms = { labelSmoothing, zLoss };
  test(`crossEntropy() and linearCrossEntropy() with label smoothing ${labelSmoothing} and z-loss ${zLoss}`, () => {
    const run = (logits: Tensor): Tensor => crossEntropy(logits, labelsOf(LABELS, [2, 3]), -100, terms);
    const reference = withTerms(LABELS, labelSmoothing, zLoss);
    gradcheckLayouts(device, { label: "crossEntropy", run, reference }, [[2, 3, 5]], -3, 3);
    const [hidden, weight] = [random([6, 4], 1), random([5, 4], 2)];
    const [x, w] = [hidden, weight].map(({ shape, data }) => tensor(device, data, { shape }));
    assert.ok(x !== undefined && w !== undefined);
    const fused = linearCrossEntropy(x, w, labelsOf(LABELS), terms).item();
    const apart = crossEntropy(x.matmul(w.transpose(0, 1)), labelsOf(LABELS), -100, terms).item();
    allClose([fused], [apart], { relative: 1e-6, absolute: 1e-6 }, "fused");
    assert.throws(() => crossEntropy(x, labelsOf(LABELS), -100, { labelSmoothing: 1.5 }), ArgumentError);
    assert.throws(() => linearCrossEntropy(x, w, labelsOf(LABELS), { zLoss: -1 }), ArgumentError);
  });
}

test("crossEntropy() of transposed labels, of bf16, of large logits", () => {
  using _frame = scope();
  const labels = labelsOf([0, 1, 2, 3, 4, 0], [3, 2]).transpose(0, 1);
  const logits = random([2, 3, 5], 1);
  const loss = crossEntropy(tensor(device, logits.data, { shape: logits.shape }), labels);
  allClose(
    loss.toArray(),
    reference([0, 2, 4, 1, 3, 0])(logits).data,
    { relative: 1e-6, absolute: 0 },
    "transposed labels",
  );
  const narrow = crossEntropy(tensor(device, logits.data, { shape: logits.shape, dtype: bfloat16 }), labels);
  assert.equal(narrow.dtype, float32);
  allClose(narrow.toArray(), loss.toArray(), { relative: 0.01, absolute: 0 }, "bf16");
  const large = tensor(device, [1e4, -1e4, 0], { shape: [1, 3] });
  allClose(crossEntropy(large, labelsOf([1])).toArray(), [2e4], { relative: 1e-6, absolute: 0 }, "large");
});

/** Inputs whose gradients flow through an op of their own dtype before they reach the float32 leaf. */
const COMPUTED: readonly (readonly [string, (leaf: Tensor, dtype: DType) => Tensor])[] = [
  ["cast", (x, dtype) => x.to(dtype)],
  ["scaled", (x, dtype) => x.to(dtype).mul(1)],
  ["copied", (x, dtype) => x.to(dtype).clone()],
  ["added to zeros", (x, dtype) => x.to(dtype).add(zeros(device, x.shape, dtype))],
  ["used twice", (x, dtype) => {
    const half = x.to(dtype).mul(0.5);
    return half.add(half);
  }],
];

test("crossEntropy() gives logits of any dtype a gradient of that dtype, whatever they are computed by", () => {
  for (const dtype of [float32, bfloat16, float16]) {
    for (const [how, computed] of COMPUTED) {
      gradcheckOf(`crossEntropy of ${dtype.name} logits, ${how}`, dtype, [random([6, 5], 3, -3, 3)], {
        run: (logits) => crossEntropy(computed(logits, dtype), labelsOf(LABELS)),
        reference: reference(LABELS),
      });
      gradcheckOf(`crossEntropy of a ${dtype.name} product, ${how}`, dtype, [random([6, 4], 3), random([4, 5], 4)], {
        run: (x, w) => crossEntropy(computed(x, dtype).matmul(computed(w, dtype)), labelsOf(LABELS)),
        reference: (x, w) => reference(LABELS)(matmul(x, w)),
      });
    }
  }
});

test("linearCrossEntropy() gives hidden, weight and bias of any dtype gradients of that dtype, frozen ones none", () => {
  const inputs = [random([6, 4], 3), random([5, 4], 4), random([5], 5)];
  const withBias = (x: Nd, w: Nd, b: Nd): Nd => {
    const logits = matmul(x, permute(w, [1, 0]));
    return reference(LABELS)({ ...logits, data: logits.data.map((value, i) => value + (b.data[i % 5] ?? NaN)) });
  };
  for (const dtype of [float32, bfloat16, float16]) {
    for (const [how, computed] of COMPUTED) {
      for (const frozen of [undefined, 0, 1, 2]) {
        gradcheckOf(`linearCrossEntropy in ${dtype.name}, ${how}, ${frozen ?? "none"} frozen`, dtype, inputs, {
          run: (x, w, b) => {
            const of = (leaf: Tensor, i: number): Tensor => computed(i === frozen ? leaf.detach() : leaf, dtype);
            return linearCrossEntropy(of(x, 0), of(w, 1), labelsOf(LABELS), { bias: of(b, 2) });
          },
          reference: withBias,
          frozen,
        });
      }
    }
  }
});

/** As `gradcheck`, with leaves of float32 that `run` converts, to the tolerance of a dtype; a frozen leaf has no gradient. */
function gradcheckOf(
  label: string,
  dtype: DType,
  inputs: readonly Nd[],
  { run, reference: f, frozen }: {
    readonly run: (...leaves: Tensor[]) => Tensor;
    readonly reference: (...inputs: Nd[]) => Nd;
    readonly frozen?: number | undefined;
  },
): void {
  const { relative, absolute } = toleranceOf(dtype);
  const rounded = inputs.map(({ shape, data }) => {
    using narrow = tensor(device, data, { shape, dtype });
    return { shape, data: [...narrow.toArray()] };
  });
  const leaves = rounded.map((input) => leaf(device, input));
  const factor = 3;
  {
    using _frame = scope();
    const loss = run(...leaves);
    allClose(loss.toArray(), f(...rounded).data, { relative: 2 * relative, absolute: 0 }, `${label}: value`);
    loss.mul(factor).backward();
  }
  for (const [i, { grad }] of leaves.entries()) {
    if (i === frozen) {
      assert.equal(grad, undefined, `${label}: gradient of a frozen input`);
      continue;
    }
    const expected = numericGradient(f, rounded, i, { shape: [], data: [factor] });
    const scale = Math.max(1, ...expected.map(Math.abs));
    allClose(grad?.toArray() ?? [], expected, { relative, absolute: absolute * scale }, `${label}: gradient ${i}`);
  }
  for (const parameter of leaves) disposeLeaf(parameter);
}

const linearReference = (labels: readonly number[]) => (hidden: Nd, weight: Nd): Nd =>
  reference(labels)(matmul(hidden, permute(weight, [1, 0])));

test("linearCrossEntropy(): value and gradient in every layout", () => {
  const run = (hidden: Tensor, weight: Tensor): Tensor => linearCrossEntropy(hidden, weight, labelsOf(LABELS));
  gradcheckLayouts(device, { label: "linearCrossEntropy", run, reference: linearReference(LABELS) }, [[6, 4], [5, 4]]);
  const inputs = [random([6, 4], 1), random([5, 4], 2)];
  gradcheck(device, {
    label: "in bf16",
    inputs,
    run,
    reference: linearReference(LABELS),
    dtype: bfloat16,
    tolerance: { relative: 0.03, absolute: 0.03 },
  });
});

test("linearCrossEntropy() with a bias: value and gradient, also of labels that are all ignored", () => {
  for (const labels of [LABELS, LABELS.map(() => -100)]) {
    const run = (hidden: Tensor, weight: Tensor, bias: Tensor): Tensor =>
      linearCrossEntropy(hidden, weight, labelsOf(labels), { bias });
    const biased = (hidden: Nd, weight: Nd, bias: Nd): Nd => {
      const logits = matmul(hidden, permute(weight, [1, 0]));
      return reference(labels)(build(logits.shape, ([row = 0, c = 0]) => at(logits, [row, c]) + at(bias, [c])));
    };
    const inputs = [random([6, 4], 1), random([5, 4], 2), random([5], 3)];
    gradcheck(device, { label: "bias", inputs, run, reference: biased });
    const tolerance = { relative: 0.03, absolute: 0.03 };
    gradcheck(device, { label: "in bf16", inputs, run, reference: biased, dtype: bfloat16, tolerance });
  }
  using _frame = scope();
  const wrong = { bias: zeros(device, [4]) };
  assert.throws(
    () => linearCrossEntropy(zeros(device, [1, 4]), zeros(device, [5, 4]), labelsOf([0]), wrong),
    /the bias must be \[5\]/,
  );
});

test("linearCrossEntropy(): gradients only where needed, none without recording", () => {
  const leaves = [leaf(device, random([6, 4], 1)), leaf(device, random([5, 4], 2))];
  const [hidden, weight] = leaves;
  assert.ok(hidden !== undefined && weight !== undefined);
  const both: ArrayLike<number>[] = [];
  for (const frozen of [undefined, ...leaves]) {
    if (frozen !== undefined) frozen.requiresGrad = false;
    {
      using _frame = scope();
      linearCrossEntropy(hidden, weight, labelsOf(LABELS)).backward();
    }
    for (const [i, one] of leaves.entries()) {
      if (frozen === undefined) both.push(one.grad?.toArray() ?? []);
      else if (one === frozen) assert.equal(one.grad, undefined);
      else assert.deepEqual(one.grad?.toArray(), both[i]);
      one.zeroGrad();
    }
    if (frozen !== undefined) frozen.requiresGrad = true;
  }
  {
    using _frame = scope();
    const loss = noGrad(() => linearCrossEntropy(hidden, weight, labelsOf(LABELS)));
    assert.ok(!loss.requiresGrad);
    assert.equal(loss.item(), linearCrossEntropy(hidden, weight, labelsOf(LABELS)).item());
  }
  leaves.forEach(disposeLeaf);
});

test("linearCrossEntropy() in several chunks is crossEntropy() of all logits, with less memory", () => {
  const [rows, width, vocab] = [600, 6, 8_000]; // 256 rows a chunk
  const labels = Array.from({ length: rows }, (_, i) => i % 9 === 4 ? -100 : (i * 7919) % vocab);
  const leaves = [leaf(device, random([rows, width], 1)), leaf(device, random([vocab, width], 2))];
  const [hidden, weight] = leaves;
  assert.ok(hidden !== undefined && weight !== undefined);
  const measure = (loss: () => Tensor): { value: number; grads: ArrayLike<number>[]; peak: number } => {
    const before = device.allocator.stats.inUse;
    device.allocator.resetPeak();
    let value = 0;
    {
      using _frame = scope();
      const made = loss();
      made.backward();
      value = made.item();
    }
    const { peak } = device.allocator.stats;
    const grads = leaves.map(({ grad }) => grad?.toArray() ?? []);
    for (const one of leaves) one.zeroGrad();
    assert.equal(device.allocator.stats.inUse, before);
    return { value, grads, peak: peak - before };
  };
  const fused = measure(() => linearCrossEntropy(hidden, weight, labelsOf(labels)));
  const plain = measure(() => crossEntropy(applyOne(linearOp, [hidden, weight], "outIn"), labelsOf(labels)));
  {
    using _frame = scope();
    const wrong = labelsOf(labels.with(60, vocab));
    assert.throws(() => linearCrossEntropy(hidden, weight, wrong), /label 8000 at row 60: there are 8000 classes/);
  }
  allClose([fused.value], [plain.value], { relative: 1e-6, absolute: 0 }, "loss");
  for (const [i, grad] of fused.grads.entries()) allCloseToScale(grad, plain.grads[i] ?? [], 1e-6, `gradient ${i}`);
  const logits = rows * vocab * 4;
  assert.ok(
    plain.peak > 2 * logits && fused.peak < logits,
    `${fused.peak} and ${plain.peak} bytes for ${logits} of logits`,
  );
  leaves.forEach(disposeLeaf);
});

test("crossEntropy() and linearCrossEntropy() of ignored rows only, or of none: 0 with gradients 0", () => {
  for (const labels of [[-100, -100, -100], []]) {
    const leaves = [leaf(device, random([labels.length, 4], 1)), leaf(device, random([5, 4], 2))];
    const [hidden, weight] = leaves;
    assert.ok(hidden !== undefined && weight !== undefined);
    // Memory that held something else before.
    const dirty = tensor(device, new Float32Array(4096).fill(NaN));
    dirty.dispose();
    {
      using _frame = scope();
      const fused = linearCrossEntropy(hidden, weight, labelsOf(labels));
      assert.equal(fused.item(), 0);
      fused.backward();
      for (const { grad } of leaves) assert.ok(grad?.toArray().every((value) => value === 0));
      for (const one of leaves) one.zeroGrad();
      const plain = crossEntropy(applyOne(linearOp, [hidden, weight], "outIn"), labelsOf(labels));
      assert.equal(plain.item(), 0);
      plain.backward();
      for (const { grad } of leaves) assert.ok(grad?.toArray().every((value) => value === 0));
    }
    leaves.forEach(disposeLeaf);
  }
});

test("crossEntropy() and linearCrossEntropy() refuse labels out of range, naming the row, and keep nothing", () => {
  const [hidden, weight] = [leaf(device, random([3, 4], 1)), leaf(device, random([5, 4], 2))];
  const before = device.allocator.stats.inUse;
  for (const [labels, label, row] of [[[0, 5, 9], 5, 1], [[0, 1, -1], -1, 2]] as const) {
    {
      using _frame = scope();
      const list = labelsOf(labels);
      assert.throws(() => crossEntropy(hidden.matmul(weight.transpose(0, 1)), list), ArgumentError);
      const expected = new RegExp(`the cross-entropy of label ${label} at row ${row}: there are 5 classes`);
      assert.throws(() => crossEntropy(hidden.matmul(weight.transpose(0, 1)), list), expected);
      assert.throws(() => linearCrossEntropy(hidden, weight, list), expected);
    }
    assert.equal(device.allocator.stats.inUse, before);
  }
  using _frame = scope();
  assert.throws(
    () => crossEntropy(hidden, labelsOf([0, 1])),
    /'crossEntropy' as there must be one label a row: shapes \[3, 4\] and \[2\]/,
  );
  assert.throws(
    () => crossEntropy(hidden, zeros(device, [3])),
    /labels must be int32, as tensor\(\) makes with dtype int32: dtypes float32/,
  );
  assert.throws(() => linearCrossEntropy(hidden, zeros(device, [5, 3]), labelsOf([0, 1, 2])), ShapeError);
  assert.throws(() => linearCrossEntropy(hidden, zeros(device, [5, 4], bfloat16), labelsOf([0, 1, 2])), DTypeError);
  [hidden, weight].forEach(disposeLeaf);
});
