/** Gradients of the losses of single tokens, against central differences, and against those of their sum. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float32, int32 } from "../../src/dtype.ts";
import { linearCrossEntropy, tokenScores } from "../../src/nn/functional.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose } from "../support/allclose.ts";
import { disposeLeaf, gradcheck, gradcheckLayouts, leaf } from "../support/gradcheck.ts";
import { matmul, type Nd, permute, random } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 512 * 2 ** 20 });
const LABELS = [1, 4, -100, 0, 2, -100];
const labels = (): Tensor => tensor(device, LABELS, { dtype: int32 });

/** The loss of each row, in float64. @param softcap bound of the logits */
function losses(logits: Nd, softcap?: number): Nd {
  const cols = logits.shape.at(-1) ?? NaN;
  const data = LABELS.map((label, row) => {
    if (label < 0) return 0;
    const given = logits.data.slice(row * cols, (row + 1) * cols);
    const scores = softcap === undefined ? given : given.map((score) => softcap * Math.tanh(score / softcap));
    return Math.log(scores.reduce((sum, score) => sum + Math.exp(score), 0)) - (scores[label] ?? NaN);
  });
  return { shape: [LABELS.length], data };
}

const product = (hidden: Nd, weight: Nd): Nd => matmul(hidden, permute(weight, [1, 0]));

test("tokenScores(): losses and gradients in every layout, each token with a gradient of its own", () => {
  const run = (hidden: Tensor, weight: Tensor): Tensor => tokenScores(hidden, weight, labels()).losses;
  const reference = (hidden: Nd, weight: Nd): Nd => losses(product(hidden, weight));
  gradcheckLayouts(device, { label: "tokenScores", run, reference }, [[6, 4], [5, 4]]);
  const tolerance = { relative: 0.03, absolute: 0.03 };
  const inputs = [random([6, 4], 1), random([5, 4], 2)];
  gradcheck(device, { label: "in bf16", inputs, run, reference, dtype: bfloat16, tolerance });
});

test("tokenScores(): gradients with a bias and a softcap", () => {
  for (const softcap of [undefined, 1.5]) {
    gradcheck(device, {
      label: `softcap ${softcap}`,
      inputs: [random([6, 4], 1, -2, 2), random([5, 4], 2, -2, 2), random([5], 3)],
      run: (hidden, weight, bias) => tokenScores(hidden, weight, labels(), { bias, softcap }).losses,
      reference: (hidden, weight, bias) => {
        const logits = product(hidden, weight);
        return losses({ ...logits, data: logits.data.map((x, i) => x + (bias.data[i % 5] ?? NaN)) }, softcap);
      },
    });
  }
});

test("tokenScores(): gradients over several chunks of logits add up to those of linearCrossEntropy()", () => {
  const [rows, width, vocab] = [600, 4, 20_000];
  const leaves = [random([rows, width], 1), random([vocab, width], 2)].map((values) => leaf(device, values));
  const [hidden, weight] = leaves;
  assert.ok(hidden !== undefined && weight !== undefined);
  const gradients = [true, false].map((isFused) => {
    using _frame = scope();
    const given = tensor(device, Array.from({ length: rows }, (_, i) => i * 31 % vocab), { dtype: int32 });
    const sum = isFused ? linearCrossEntropy(hidden, weight, given) : tokenScores(hidden, weight, given).losses.sum();
    sum.backward();
    const found = leaves.map(({ grad }) => grad?.toArray() ?? assert.fail());
    for (const one of leaves) one.zeroGrad();
    return found;
  });
  const [fused = [], apart = []] = gradients;
  for (const [i, expected] of fused.entries()) {
    allClose(apart[i] ?? [], expected, { relative: 1e-4, absolute: 1e-6 }, `gradient ${i}`);
  }
  for (const one of leaves) disposeLeaf(one);
});

test("tokenScores() of no tokens gives gradients of zeros", () => {
  const [weight, hidden] = [leaf(device, random([5, 4], 1)), leaf(device, { shape: [0, 4], data: [] })];
  {
    using _frame = scope();
    const { losses } = tokenScores(hidden, weight, tensor(device, [], { shape: [0], dtype: int32 }));
    losses.backward(tensor(device, [], { shape: [0], dtype: float32 }));
  }
  assert.deepEqual([...weight.grad?.toArray() ?? []], new Array<number>(20).fill(0));
  for (const one of [weight, hidden]) disposeLeaf(one);
});
