/** Experts' products and the way to them and back, against plain loops: values and gradients. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { at as element } from "../../src/at.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float16, float32, int32 } from "../../src/dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../../src/errors.ts";
import { clampedSwigluOp, combineOp, dispatchOp, groupedLinearOp, sortPairsOp } from "../../src/ops/experts.ts";
import type { WeightLayout } from "../../src/ops/matmul.ts";
import { type RouteAttrs, routeOp } from "../../src/ops/router.ts";
import { apply, applyOne } from "../../src/tensor/apply.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose } from "../support/allclose.ts";
import { disposeLeaf, gradcheck, leaf } from "../support/gradcheck.ts";
import { at, build, type Nd, random, softmaxRow } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });

const ints = (values: readonly number[], shape: readonly number[]): Tensor => {
  return tensor(device, values, { shape, dtype: int32 });
};

/** Rows of four experts, of which the second has none. */
const ENDS = [2, 2, 5, 6];
const expertOf = (row: number): number => ENDS.findIndex((end) => row < end);

function grouped(layout: WeightLayout) {
  return (x: Nd, weight: Nd, bias?: Nd): Nd => {
    const [inFeatures, outFeatures] = [x.shape[1] ?? 0, weight.shape[layout === "outIn" ? 1 : 2] ?? 0];
    return build([x.shape[0] ?? 0, outFeatures], ([row = 0, out = 0]) => {
      const expert = expertOf(row);
      let sum = bias === undefined ? 0 : at(bias, [expert, out]);
      for (let i = 0; i < inFeatures; i++) {
        sum += at(x, [row, i]) * at(weight, layout === "outIn" ? [expert, out, i] : [expert, i, out]);
      }
      return sum;
    });
  };
}

test("groupedLinear: value and gradient in both layouts, with and without a bias; none of an expert without rows", () => {
  for (const layout of ["outIn", "inOut"] as const) {
    const weight = layout === "outIn" ? [4, 5, 3] : [4, 3, 5];
    for (const shapes of [[[6, 3], weight], [[6, 3], weight, [4, 5]]]) {
      const inputs = shapes.map((shape, i) => random(shape, i + 1));
      const run = (x: Tensor, w: Tensor, bias?: Tensor): Tensor => {
        return applyOne(groupedLinearOp, [x, w, ints(ENDS, [4]), ...bias === undefined ? [] : [bias]], layout);
      };
      const check = { label: `${layout} of ${shapes.length}`, inputs, run, reference: grouped(layout) };
      gradcheck(device, check);
      gradcheck(device, { ...check, label: `${check.label}, bf16`, dtype: bfloat16 });
    }
  }
});

const CHOSEN = [2, 0, 3, 2, 0, 2];

test("dispatch and combine bring rows to experts and back: value and gradient", () => {
  const places = [2, 0, 5, 3, 1, 4];
  const run = (x: Tensor, weights: Tensor): Tensor => {
    const [sorted, ends] = apply(sortPairsOp, [ints(CHOSEN, [3, 2])], { numExperts: 4 });
    assert.deepEqual([...sorted?.toArray() ?? []], places);
    assert.deepEqual([...ends?.toArray() ?? []], ENDS);
    const pairs = applyOne(dispatchOp, [x, ints(places, [3, 2])], undefined);
    return applyOne(combineOp, [pairs.square(), ints(places, [3, 2]), weights.to(float32)], undefined);
  };
  const reference = (x: Nd, weights: Nd): Nd =>
    build(x.shape, ([t = 0, c = 0]) => at(x, [t, c]) ** 2 * (at(weights, [t, 0]) + at(weights, [t, 1])));
  for (const width of [1, 5]) {
    gradcheck(device, { label: `width ${width}`, inputs: [random([3, width], 1), random([3, 2], 2)], run, reference });
  }
});

const ATTRS = {
  ...{ topK: 2, scoring: "softmax", normalize: true, scale: 1.5, groups: 1, topGroups: 1, groupBest: 1, jitter: 0 },
} as const;

test("route: weights and their gradient, and what cannot be routed", () => {
  const logits: Nd = { shape: [2, 4], data: [0.5, -1, 2, 0.25, 1, 3, -2, 0] };
  const reference = (x: Nd): Nd =>
    build([2, 2], ([row = 0, j = 0]) => {
      const pair = [[2, 0], [1, 0]][row]?.map((expert) => at(x, [row, expert])) ?? [];
      return 1.5 * element(softmaxRow(pair), j, "share");
    });
  const run = (x: Tensor): Tensor => element(apply(routeOp, [x], ATTRS), 0, "output");
  gradcheck(device, { label: "softmax", inputs: [logits], run, reference });
  using _frame = scope();
  const x = zeros(device, [2, 6]);
  const wrong: readonly Partial<RouteAttrs>[] = [
    { topK: 7 },
    { topK: 0 },
    { groups: 4 },
    { groups: 3, topGroups: 1, topK: 3 },
    { groups: 3, topGroups: 4 },
    { groups: 6, topGroups: 6, groupBest: 2 },
  ];
  for (const attrs of wrong) {
    assert.throws(() => apply(routeOp, [x], { ...ATTRS, ...attrs }), ArgumentError, JSON.stringify(attrs));
  }
  const unmixed: readonly Partial<Omit<RouteAttrs, "sampled" | "groupBest">>[] = [
    { normalize: true },
    { topK: 3 },
    { groups: 2, topGroups: 2 },
  ];
  for (const attrs of unmixed) {
    const mixed: RouteAttrs = { ...ATTRS, groupBest: 1, normalize: false, scoring: "sparseMixer", ...attrs };
    assert.throws(() => apply(routeOp, [x], mixed), /Cannot route by 'sparseMixer' with .*: it takes 1 or 2 experts/);
  }
  assert.throws(() => apply(routeOp, [zeros(device, [1, 4097])], ATTRS), /at most 4096 in all/);
  assert.throws(() => apply(routeOp, [zeros(device, [6])], ATTRS), ShapeError);
  assert.throws(() => apply(routeOp, [x, zeros(device, [5])], ATTRS), ShapeError);
  assert.throws(() => apply(routeOp, [ints([1, 2], [1, 2])], ATTRS), DTypeError);
});

test("route: the experts that are chosen are integers, which need no gradient", () => {
  using _frame = scope();
  const logits = leaf(device, { shape: [2, 4], data: [0.5, -1, 2, 0.25, 1, 3, -2, 0] });
  const [weights, experts] = apply(routeOp, [logits.to(float16)], ATTRS);
  assert.equal(weights?.requiresGrad, true);
  assert.equal(experts?.requiresGrad, false);
  assert.throws(() => experts?.backward(ints([1, 1, 1, 1], [2, 2])), /needs no gradient/);
  weights?.sum().backward();
  assert.ok(logits.grad !== undefined);
  disposeLeaf(logits);
});

test("clampedSwiglu: value and gradient on both sides of its clamps", () => {
  const attrs = { alpha: 1.702, limit: 0.6 };
  const reference = (x: Nd): Nd =>
    build([3, 2], ([row = 0, i = 0]) => {
      const gate = Math.min(at(x, [row, 2 * i]), attrs.limit);
      const up = Math.max(-attrs.limit, Math.min(attrs.limit, at(x, [row, 2 * i + 1])));
      return (up + 1) * gate / (1 + Math.exp(-attrs.alpha * gate));
    });
  const run = (x: Tensor): Tensor => applyOne(clampedSwigluOp, [x], attrs);
  gradcheck(device, { label: "f32", inputs: [random([3, 4], 5)], run, reference });
});

test("clampedSwiglu: no gradient passes at a limit, as in gpt_oss of transformers", () => {
  using _frame = scope();
  const pairs = [0.5, 0.25, 0.25, 0.5, 0.25, -0.5, -0.5, 0.25, 0.75, 0.25, 0.25, -0.75, 0.5, 0.5];
  // The gradients of the sum in PyTorch 2.15, of `_apply_gate` in transformers 5.24.
  const gradients = [
    [0, 0.35038843750953674],
    [1.0597506761550903, 0],
    [0.3532502353191376, 0],
    [0.1509726345539093, -0.14961156249046326],
    [0, 0.35038843750953674],
    [0.3532502353191376, 0],
    [0, 0],
  ].flat();
  const x = leaf(device, { shape: [1, pairs.length], data: pairs });
  applyOne(clampedSwigluOp, [x], { alpha: 1.702, limit: 0.5 }).sum().backward();
  allClose([...x.grad?.toArray() ?? []], gradients, { relative: 1e-6, absolute: 0 }, "clampedSwiglu");
  disposeLeaf(x);
});

test("experts' operations refuse shapes and dtypes that do not fit", () => {
  using _frame = scope();
  const [x, places, ends] = [zeros(device, [6, 3]), ints(CHOSEN, [3, 2]), ints(ENDS, [4])];
  assert.throws(() => apply(sortPairsOp, [x], { numExperts: 2 }), DTypeError);
  assert.throws(() => applyOne(dispatchOp, [x, places], undefined), ShapeError);
  assert.throws(() => applyOne(combineOp, [x, places, zeros(device, [3, 3])], undefined), ShapeError);
  assert.throws(() => applyOne(combineOp, [x, places, zeros(device, [3, 2], bfloat16)], undefined), DTypeError);
  assert.throws(() => applyOne(groupedLinearOp, [x, zeros(device, [3, 5, 3]), ends], "outIn"), ShapeError);
  assert.throws(() => applyOne(groupedLinearOp, [x, zeros(device, [4, 5, 3]), ends, zeros(device, [4, 3])], "outIn"), {
    name: "ShapeError",
  });
  assert.throws(() => applyOne(clampedSwigluOp, [zeros(device, [2, 3])], { alpha: 1, limit: 1 }), ShapeError);
});
