/** The gated delta rule against the plain recurrence: values and gradients, states that are moved on, and what is refused. @module */
import assert from "node:assert/strict";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float32 } from "../../src/dtype.ts";
import { DTypeError, ShapeError } from "../../src/errors.ts";
import { gatedDeltaRule } from "../../src/nn/functional.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose, toleranceOf } from "../support/allclose.ts";
import { gradcheck, gradcheckLayouts } from "../support/gradcheck.ts";
import { at, build, type Nd, random } from "../support/reference.ts";
import { sharedTest as test } from "../support/share.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });
const ATTRS = { keyHeads: 1, valueHeads: 2, scale: 0.5 } as const;

/** One key head of `q` and `k`, two value heads; decays are the negative squares of `g`. */
function reference(q: Nd, k: Nd, v: Nd, g: Nd, beta: Nd): Nd {
  const [, , keyDim = 0] = q.shape;
  const valueDim = (v.shape[2] ?? 0) / 2;
  const states = new Float64Array((v.shape[0] ?? 0) * 2 * keyDim * valueDim);
  const state = (b: number, h: number, d: number, e: number): number => ((b * 2 + h) * keyDim + d) * valueDim + e;
  const read = (x: Nd, b: number, t: number, h: number, e: number): number => {
    let total = 0;
    for (let d = 0; d < keyDim; d++) total += (states[state(b, h, d, e)] ?? NaN) * at(x, [b, t, d]);
    return total;
  };
  return build(v.shape, ([b = 0, t = 0, place = 0]) => {
    const [h, e] = [Math.floor(place / valueDim), place % valueDim];
    const fade = Math.exp(-(at(g, [b, t, h]) ** 2));
    for (let d = 0; d < keyDim; d++) states[state(b, h, d, e)] = fade * (states[state(b, h, d, e)] ?? NaN);
    const write = at(beta, [b, t, h]) * (at(v, [b, t, place]) - read(k, b, t, h, e));
    for (let d = 0; d < keyDim; d++) {
      states[state(b, h, d, e)] = (states[state(b, h, d, e)] ?? NaN) + at(k, [b, t, d]) * write;
    }
    return 0.5 * read(q, b, t, h, e);
  });
}

function run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor): Tensor {
  return gatedDeltaRule(q, k, v, g.to(float32).square().neg(), beta, ATTRS);
}

test("gatedDeltaRule(): value and gradient, of sequences within a chunk and beyond it", () => {
  for (const seq of [1, 5, 67]) {
    const shapes = [[2, seq, 3], [2, seq, 3], [2, seq, 4], [2, seq, 2], [2, seq, 2]];
    const check = { label: `${seq} tokens`, run, reference };
    if (seq === 5) gradcheckLayouts(device, check, shapes, -0.9, 0.9);
    else gradcheck(device, { ...check, inputs: shapes.map((shape, i) => random(shape, i + 1, -0.8, 0.8)) });
  }
  const inputs = [[1, 6, 3], [1, 6, 3], [1, 6, 4], [1, 6, 2], [1, 6, 2]].map((shape, i) =>
    random(shape, i + 1, -0.8, 0.8)
  );
  gradcheck(device, { label: "bf16", inputs, run, reference, dtype: bfloat16 });
});

test("gatedDeltaRule() moves a state on as the whole sequence would", () => {
  using _frame = scope();
  const seq = 70;
  const of = (width: number, seed: number, low = -1, high = 1): Tensor => {
    const { data, shape } = random([1, seq, width], seed, low, high);
    return tensor(device, data, { shape });
  };
  const [q, k, v, g, beta] = [of(3, 1), of(3, 2, -0.7, 0.7), of(4, 3), of(2, 4, -0.5, 0), of(2, 5, 0, 1)];
  const all = gatedDeltaRule(q, k, v, g, beta, ATTRS).toArray();
  const state = zeros(device, [1, 2, 3, 2]);
  const found = [[0, 3], [3, 1], [4, 65], [69, 1]].flatMap(([start = 0, length = 0]) => {
    const part = (x: Tensor): Tensor => x.narrow(1, start, length);
    return [...gatedDeltaRule(part(q), part(k), part(v), part(g), part(beta), { ...ATTRS, state }).toArray()];
  });
  allClose(found, all, toleranceOf(float32), "outputs");
});

test("gatedDeltaRule() refuses shapes and dtypes that do not fit", () => {
  using _frame = scope();
  const [q, v, rates] = [zeros(device, [1, 4, 3]), zeros(device, [1, 4, 4]), zeros(device, [1, 4, 2])];
  const refuses = (
    inputs: readonly [Tensor, Tensor, Tensor, Tensor, Tensor],
    error: RegExp | typeof DTypeError,
    attrs = {},
  ) => assert.throws(() => gatedDeltaRule(...inputs, { ...ATTRS, ...attrs }), error);
  refuses([q, q, v, rates.to(bfloat16), rates], /g must be float32, and q, k, v and beta of one dtype/);
  refuses([q, q.to(bfloat16), v, rates, rates], DTypeError);
  refuses([q, v, v, rates, rates], /1 key heads and 2 value heads must fit/);
  refuses([q, q, v, rates, rates], /2 key heads and 2 value heads must fit/, { keyHeads: 2 });
  refuses([q, q, v, q, rates], /must fit/);
  refuses([q, q, v, rates, rates], /the state must be float32 \[1, 2, 3, 2\]/, { state: zeros(device, [1, 2, 2, 3]) });
  const wide = zeros(device, [1, 4, 257]);
  assert.throws(() => gatedDeltaRule(wide, wide, v, rates, rates, ATTRS), ShapeError);
});
