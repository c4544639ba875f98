/**
 * Attention against plain loops: values and gradients for grouped heads, masks, unequal lengths, and sequences longer than the
 * kernel's blocks.
 *
 * @module
 */
import assert from "node:assert/strict";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, uint8 } from "../../src/dtype.ts";
import { DTypeError, ShapeError } from "../../src/errors.ts";
import { attention } from "../../src/nn/functional.ts";
import type { AttentionAttrs } from "../../src/ops/attention.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose, allCloseToScale } from "../support/allclose.ts";
import { disposeLeaf, gradcheck, gradcheckLayouts, leaf } from "../support/gradcheck.ts";
import { at, build, type Nd, random, softmaxRow, sum } from "../support/reference.ts";
import { sharedTest as test } from "../support/share.ts";

const device = await openDevice("cpu", { memoryBytes: 256 * 2 ** 20 });

/** One row of probabilities; empty sight gives zeros. */
function probabilities(
  q: Nd,
  k: Nd,
  attrs: AttentionAttrs,
  mask: readonly number[] | undefined,
  b: number,
  h: number,
  i: number,
): number[] {
  const [seqQ = 0, seqK = 0, d = 0] = [q.shape[1], k.shape[1], (q.shape[2] ?? 0) / attrs.heads];
  const kvHead = Math.floor(h / (attrs.heads / attrs.kvHeads));
  const scores = Array.from({ length: seqK }, (_, j) => {
    const own = i + seqK - seqQ;
    const far = attrs.window !== undefined && j <= own - attrs.window;
    const row = mask?.length === seqK * (q.shape[0] ?? 0) ? b : b * seqQ + i;
    const hidden = (attrs.causal && j > own) || far || mask?.[row * seqK + j] === 0;
    if (hidden) return -Infinity;
    let score = 0;
    for (let e = 0; e < d; e++) score += at(q, [b, i, h * d + e]) * at(k, [b, j, kvHead * d + e]);
    return score * attrs.scale;
  });
  return scores.every((score) => score === -Infinity) ? scores.map(() => 0) : softmaxRow(scores);
}

function reference(attrs: AttentionAttrs, mask?: readonly number[]) {
  return (q: Nd, k: Nd, v: Nd): Nd => {
    const d = (v.shape[2] ?? 0) / attrs.kvHeads;
    const made = new Map<string, number[]>();
    return build([q.shape[0] ?? 0, q.shape[1] ?? 0, attrs.heads * d], ([b = 0, i = 0, column = 0]) => {
      const h = Math.floor(column / d);
      const kvColumn = Math.floor(h / (attrs.heads / attrs.kvHeads)) * d + column % d;
      const key = `${b} ${h} ${i}`;
      const row = made.get(key) ?? probabilities(q, k, attrs, mask, b, h, i);
      made.set(key, row);
      return sum(row.map((p, j) => p * at(v, [b, j, kvColumn])));
    });
  };
}

const TOLERANCE = { relative: 2e-5, absolute: 5e-6 };

for (const [heads, kvHeads, d] of [[1, 1, 3], [2, 2, 4], [4, 2, 2], [3, 1, 5]] as const) {
  for (const causal of [false, true]) {
    test(`attention(), ${heads} heads, ${kvHeads} kv heads of ${d}, ${causal ? "" : "not "}causal: value and gradient`, () => {
      const attrs = { heads, kvHeads, causal, scale: 0.7 };
      const shapes = [[2, 4, heads * d], [2, 4, kvHeads * d], [2, 4, kvHeads * d]];
      const run = (q: Tensor, k: Tensor, v: Tensor): Tensor => attention(q, k, v, attrs);
      gradcheckLayouts(device, { label: "attention", run, reference: reference(attrs), tolerance: TOLERANCE }, shapes);
    });
  }
}

test("attention() with a sink of each head: value and gradient, with grouped heads, padding and a window", () => {
  const attrs = { heads: 4, kvHeads: 2, causal: true, scale: 0.7, window: 3 };
  const shapes = [[2, 6, 8], [2, 6, 4], [2, 6, 4], [4]];
  const mask = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0];
  // A sink is a key of its own: what the others give has the share that it leaves.
  const sunk = (given: readonly number[] | undefined) => (q: Nd, k: Nd, v: Nd, sinks: Nd): Nd => {
    const plain = reference(attrs, given)(q, k, v);
    return build(plain.shape, ([b = 0, i = 0, column = 0]) => {
      const h = Math.floor(column / 2);
      const keys = Array.from({ length: 6 }, (_, j) => j).filter((j) => {
        return j <= i && j > i - attrs.window && given?.[b * 6 + j] !== 0;
      });
      const score = (j: number): number => {
        const kvHead = Math.floor(h / 2);
        return 0.7 * sum([0, 1].map((e) => at(q, [b, i, h * 2 + e]) * at(k, [b, j, kvHead * 2 + e])));
      };
      const all = sum(keys.map((j) => Math.exp(score(j))));
      return at(plain, [b, i, column]) * all / (all + Math.exp(at(sinks, [h])));
    });
  };
  for (const given of [undefined, mask]) {
    const run = (q: Tensor, k: Tensor, v: Tensor, sinks: Tensor): Tensor => {
      const keyMask = given === undefined ? undefined : tensor(device, given, { shape: [2, 6], dtype: uint8 });
      return attention(q, k, v, attrs, keyMask, sinks);
    };
    gradcheckLayouts(device, { label: "sinks", run, reference: sunk(given), tolerance: TOLERANCE }, shapes);
  }
  using _frame = scope();
  const x = zeros(device, [1, 2, 8]);
  const kv = zeros(device, [1, 2, 4]);
  assert.throws(() => attention(x, kv, kv, attrs, undefined, zeros(device, [3])), /sinks must be float32 \[4\]/);
});

test("attention() to values of a width of their own, and with a mask for each query: value and gradient", () => {
  const attrs = { heads: 4, kvHeads: 2, causal: true, scale: 0.7 };
  for (const width of [1, 5]) {
    const shapes = [[2, 4, 12], [2, 4, 6], [2, 4, 2 * width]];
    const run = (q: Tensor, k: Tensor, v: Tensor): Tensor => attention(q, k, v, attrs);
    gradcheckLayouts(device, { label: `${width}`, run, reference: reference(attrs), tolerance: TOLERANCE }, shapes);
  }
  const mask = Array.from({ length: 2 * 4 * 4 }, (_, i) => Number(i % 3 !== 1));
  const keyMask = tensor(device, mask, { shape: [2, 4, 4], dtype: uint8 }).persist();
  const inputs = [random([2, 4, 12], 1), random([2, 4, 6], 2), random([2, 4, 4], 3)];
  const run = (q: Tensor, k: Tensor, v: Tensor): Tensor => attention(q, k, v, attrs, keyMask);
  gradcheck(device, { label: "masks", inputs, run, reference: reference(attrs, mask), tolerance: TOLERANCE });
  keyMask.dispose();
});

test("attention() within a window: value and gradient, with grouped heads, padding, and fewer queries than keys", () => {
  for (const window of [1, 3, 9]) {
    const attrs = { heads: 4, kvHeads: 2, causal: true, scale: 0.7, window };
    const shapes = [[2, 6, 8], [2, 6, 4], [2, 6, 4]];
    const run = (q: Tensor, k: Tensor, v: Tensor): Tensor => attention(q, k, v, attrs);
    gradcheckLayouts(device, { label: "window", run, reference: reference(attrs), tolerance: TOLERANCE }, shapes);
    const inputs = [random([2, 2, 8], 1), random([2, 5, 4], 2), random([2, 5, 4], 3)];
    gradcheck(device, { label: "late queries", inputs, run, reference: reference(attrs), tolerance: TOLERANCE });
  }
  const attrs = { heads: 1, kvHeads: 1, causal: true, scale: 1, window: 2 };
  const mask = [1, 0, 0, 0, 1, 1, 1, 1, 0, 1];
  const keyMask = tensor(device, mask, { shape: [2, 5], dtype: uint8 }).persist();
  const inputs = [random([2, 5, 3], 1), random([2, 5, 3], 2), random([2, 5, 3], 3)];
  const run = (q: Tensor, k: Tensor, v: Tensor): Tensor => attention(q, k, v, attrs, keyMask);
  gradcheck(device, { label: "padding", inputs, run, reference: reference(attrs, mask), tolerance: TOLERANCE });
  keyMask.dispose();
});

test("attention() refuses windows that are none, and windows of attention that is not causal", () => {
  using _frame = scope();
  const x = zeros(device, [1, 2, 4]);
  for (const [causal, window] of [[true, 0], [true, 1.5], [false, 2]] as const) {
    const attrs = { heads: 1, kvHeads: 1, causal, scale: 1, window };
    assert.throws(() => attention(x, x, x, attrs), /Cannot attend within a window of .*: it must be 1 key or more/);
  }
});

test("attention() with fewer queries than keys, and more", () => {
  for (const [seqQ, seqK] of [[2, 5], [1, 6], [5, 3]] as const) {
    for (const causal of [false, true]) {
      const attrs = { heads: 2, kvHeads: 1, causal, scale: 1 };
      const inputs = [random([2, seqQ, 6], 1), random([2, seqK, 3], 2), random([2, seqK, 3], 3)];
      const run = (q: Tensor, k: Tensor, v: Tensor): Tensor => attention(q, k, v, attrs);
      gradcheck(device, {
        label: `${seqQ} to ${seqK}`,
        inputs,
        run,
        reference: reference(attrs),
        tolerance: TOLERANCE,
      });
    }
  }
});

test("attention() with a key mask: hidden keys count for nothing, a query that sees none gives 0", () => {
  const mask = [1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0];
  const keyMask = tensor(device, mask, { shape: [3, 5], dtype: uint8 }).persist();
  for (const causal of [false, true]) {
    const attrs = { heads: 2, kvHeads: 2, causal, scale: 0.5 };
    const inputs = [random([3, 5, 4], 1), random([3, 5, 4], 2), random([3, 5, 4], 3)];
    const run = (q: Tensor, k: Tensor, v: Tensor): Tensor => attention(q, k, v, attrs, keyMask);
    gradcheck(device, { label: "masked", inputs, run, reference: reference(attrs, mask), tolerance: TOLERANCE });
  }
  keyMask.dispose();
});

test("attention() of one tensor as q, k and v, and in bf16", () => {
  const attrs = { heads: 2, kvHeads: 2, causal: true, scale: 0.5 };
  const whole = reference(attrs);
  const inputs = [random([1, 4, 6], 1)];
  gradcheck(device, {
    label: "self",
    inputs,
    run: (x) => attention(x, x, x, attrs),
    reference: (x) => whole(x, x, x),
    tolerance: TOLERANCE,
  });
  gradcheck(device, {
    label: "bf16",
    inputs,
    run: (x) => attention(x, x, x, attrs),
    reference: (x) => whole(x, x, x),
    dtype: bfloat16,
  });
});

/** Gradients by the textbook: with P the probabilities, dS = P ∘ (dO Vᵀ - rowsum(dO ∘ O)). */
function longGradients(q: Nd, k: Nd, v: Nd, dO: Nd, attrs: AttentionAttrs): readonly Float64Array[] {
  const [, seq = 0, width = 0] = q.shape;
  const kvWidth = k.shape[2] ?? 0;
  const d = width / attrs.heads;
  const [o, dq, dk, dv] = [q.data.length, q.data.length, k.data.length, v.data.length].map((n) => new Float64Array(n));
  if (o === undefined || dq === undefined || dk === undefined || dv === undefined) throw new Error("unreachable");
  for (let h = 0; h < attrs.heads; h++) {
    const kv = Math.floor(h / (attrs.heads / attrs.kvHeads));
    for (let i = 0; i < seq; i++) {
      const row = probabilities(q, k, attrs, undefined, 0, h, i);
      const at = (data: ArrayLike<number>, token: number, column: number, stride: number): number =>
        data[token * stride + column] ?? NaN;
      const add = (into: Float64Array, token: number, column: number, stride: number, value: number): void => {
        into[token * stride + column] = at(into, token, column, stride) + value;
      };
      for (let e = 0; e < d; e++) {
        for (let j = 0; j < seq; j++) add(o, i, h * d + e, width, (row[j] ?? 0) * at(v.data, j, kv * d + e, kvWidth));
      }
      let dot = 0;
      for (let e = 0; e < d; e++) dot += at(dO.data, i, h * d + e, width) * at(o, i, h * d + e, width);
      for (let j = 0; j < seq; j++) {
        const p = row[j] ?? 0;
        if (p === 0) continue;
        let dp = 0;
        for (let e = 0; e < d; e++) dp += at(dO.data, i, h * d + e, width) * at(v.data, j, kv * d + e, kvWidth);
        const ds = p * (dp - dot) * attrs.scale;
        for (let e = 0; e < d; e++) {
          add(dq, i, h * d + e, width, ds * at(k.data, j, kv * d + e, kvWidth));
          add(dk, j, kv * d + e, kvWidth, ds * at(q.data, i, h * d + e, width));
          add(dv, j, kv * d + e, kvWidth, p * at(dO.data, i, h * d + e, width));
        }
      }
    }
  }
  return [o, dq, dk, dv];
}

test("attention() over a long sequence: values, gradients, and memory linear in it", () => {
  for (const [seq, window] of [[129, undefined], [300, undefined], [300, 40], [600, 130]] as const) {
    const attrs = { heads: 2, kvHeads: 1, causal: true, scale: 0.3, window };
    const [q, k, v, dO] = [
      random([1, seq, 16], 1, -2, 2),
      random([1, seq, 8], 2, -2, 2),
      random([1, seq, 8], 3),
      random([1, seq, 16], 4),
    ];
    const leaves: Parameter[] = [q, k, v].map((value) => leaf(device, value));
    const [lq, lk, lv] = leaves;
    assert.ok(lq !== undefined && lk !== undefined && lv !== undefined);
    const [o, ...grads] = longGradients(q, k, v, dO, attrs);
    device.allocator.resetPeak();
    const before = device.allocator.stats.inUse;
    {
      using _frame = scope();
      const y = attention(lq, lk, lv, attrs);
      allClose(y.toArray(), o ?? [], TOLERANCE, `value at ${seq}`);
      y.backward(tensor(device, dO.data, { shape: dO.shape }));
    }
    for (const [i, grad] of grads.entries()) {
      allCloseToScale(leaves[i]?.grad?.toArray() ?? [], grad, 1e-5, `gradient ${i} at ${seq}`);
    }
    assert.ok(device.allocator.stats.peak - before < 16 * seq * 16 * 4);
    leaves.forEach(disposeLeaf);
  }
});

test("attention() refuses heads, shapes, masks and dtypes that do not fit", () => {
  using _frame = scope();
  const attrs = { heads: 4, kvHeads: 2, causal: true, scale: 1 };
  const z = (...shape: number[]): Tensor => zeros(device, shape);
  const run = (q: Tensor, k: Tensor, v: Tensor, mask?: Tensor) => (): Tensor => attention(q, k, v, attrs, mask);
  assert.throws(
    run(z(1, 3, 8), z(1, 3, 8), z(1, 3, 8)),
    /'attention' as 4 query and 2 kv heads must fit \[batch, seq, heads \* headDim\]: shapes \[1, 3, 8\] and/,
  );
  assert.throws(run(z(1, 3, 8), z(2, 3, 4), z(2, 3, 4)), ShapeError);
  assert.throws(run(z(1, 3, 8), z(1, 3, 4), z(1, 2, 4)), ShapeError);
  assert.throws(run(z(3, 8), z(3, 4), z(3, 4)), ShapeError);
  assert.throws(run(z(1, 3, 6), z(1, 3, 3), z(1, 3, 3)), ShapeError);
  assert.throws(run(z(1, 1, 2048), z(1, 1, 1024), z(1, 1, 1024)), /at most 256/);
  assert.throws(run(z(1, 3, 8), z(1, 3, 4), z(1, 3, 4), z(1, 3)), /the key mask must be uint8 \[batch, seqK\]/);
  assert.throws(run(z(1, 3, 8), z(1, 3, 4), z(1, 3, 4), zeros(device, [1, 2], uint8)), ShapeError);
  assert.throws(run(z(1, 3, 8), zeros(device, [1, 3, 4], bfloat16), z(1, 3, 4)), DTypeError);
  assert.throws(() => attention(z(1, 3, 9), z(1, 3, 6), z(1, 3, 6), { ...attrs, heads: 3 }), ShapeError);
});
