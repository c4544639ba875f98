/**
 * Attention and its backward against the plain formula in float64, over head groups, masks, causality, odd sizes and
 * block edges.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { bfloat16, float32, uint8 } from "../../src/dtype.ts";
import type { DType } from "../../src/dtype.ts";
import { InternalError } from "../../src/errors.ts";
import { NO_PTR } from "../../src/device/device.ts";
import type { AttentionShape } from "../../src/device/kernels.ts";
import type { KernelVariant } from "../../wasm/mod.ts";
import { Bed, close, FLOATS, fround, pick, sum } from "./kernels_bed.ts";

interface Case {
  readonly batch: number;
  readonly seqQ: number;
  readonly seqK: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly causal: boolean;
  /** Hides these keys of each batch entry. */
  readonly hidden?: (batch: number, key: number) => boolean;
  /** Elements between rows beyond the dense ones. */
  readonly gap?: number;
}

interface Reference {
  readonly o: number[];
  readonly lse: number[];
  readonly dq: number[];
  readonly dk: number[];
  readonly dv: number[];
}

/** The formula, with all gradients. Rows of `q`, `k`, `v` have the given strides. */
function reference(
  c: Case,
  scale: number,
  strides: readonly [number, number],
  q: readonly number[],
  k: readonly number[],
  v: readonly number[],
  dO: readonly number[],
): Reference {
  const { batch, seqQ, seqK, heads, kvHeads, headDim } = c;
  const out: Reference = {
    o: new Array(batch * seqQ * heads * headDim).fill(0),
    lse: new Array(batch * heads * seqQ).fill(-Infinity),
    dq: new Array(batch * seqQ * heads * headDim).fill(0),
    dk: new Array(batch * seqK * kvHeads * headDim).fill(0),
    dv: new Array(batch * seqK * kvHeads * headDim).fill(0),
  };
  const add = (list: number[], at: number, value: number): void => {
    list[at] = pick(list, at) + value;
  };
  for (let b = 0; b < batch; b++) {
    for (let h = 0; h < heads; h++) {
      const kv = Math.floor(h / (heads / kvHeads));
      for (let i = 0; i < seqQ; i++) {
        const row = (b * seqQ + i) * heads * headDim + h * headDim;
        const qAt = (b * seqQ + i) * strides[0] + h * headDim;
        const kAt = (j: number): number => (b * seqK + j) * strides[1] + kv * headDim;
        const dAt = (j: number): number => (b * seqK + j) * kvHeads * headDim + kv * headDim;
        const seen = Array.from({ length: seqK }, (_, j) => j).filter((j) =>
          (!c.causal || j <= i + seqK - seqQ) && !c.hidden?.(b, j)
        );
        if (seen.length === 0) continue;
        const scores = seen.map((j) => scale * sum(headDim, (d) => pick(q, qAt + d) * pick(k, kAt(j) + d)));
        const top = Math.max(...scores);
        const total = scores.reduce((t, s) => t + Math.exp(s - top), 0);
        out.lse[(b * heads + h) * seqQ + i] = top + Math.log(total);
        const p = scores.map((s) => Math.exp(s - top) / total);
        const dp = seen.map((j) => sum(headDim, (d) => pick(dO, row + d) * pick(v, kAt(j) + d)));
        const delta = sum(seen.length, (s) => pick(p, s) * pick(dp, s));
        seen.forEach((j, s) => {
          const ds = pick(p, s) * (pick(dp, s) - delta) * scale;
          for (let d = 0; d < headDim; d++) {
            add(out.o, row + d, pick(p, s) * pick(v, kAt(j) + d));
            add(out.dv, dAt(j) + d, pick(p, s) * pick(dO, row + d));
            add(out.dq, row + d, ds * pick(k, kAt(j) + d));
            add(out.dk, dAt(j) + d, ds * pick(q, qAt + d));
          }
        });
      }
    }
  }
  return out;
}

function check(bed: Bed, dtype: DType, epsilon: number, c: Case): void {
  const { batch, seqQ, seqK, heads, kvHeads, headDim, causal, hidden, gap = 0 } = c;
  const scale = fround(1 / Math.sqrt(headDim));
  const strides = [heads * headDim + gap, kvHeads * headDim + 2 * gap] as const;
  const q = bed.random(dtype, batch * seqQ * strides[0] + 1, -2, 2);
  const k = bed.random(dtype, batch * seqK * strides[1] + 1, -2, 2);
  const v = bed.random(dtype, batch * seqK * strides[1] + 1);
  const sizeQ = batch * seqQ * heads * headDim;
  const sizeK = batch * seqK * kvHeads * headDim;
  const dO = bed.random(dtype, sizeQ);
  const mask = Array.from(
    { length: batch * seqK },
    (_, at) => Number(!hidden?.(Math.floor(at / seqK), at % seqK)),
  );
  const shape: AttentionShape = {
    dtype,
    batch,
    seqQ,
    seqK,
    heads,
    kvHeads,
    headDim,
    strideQ: strides[0],
    strideK: strides[1],
    strideV: strides[1],
    scale,
    causal,
    keyMask: hidden === undefined ? NO_PTR : bed.put(uint8, mask),
  };
  const [o, lse] = [bed.room(dtype, sizeQ), bed.room(float32, batch * heads * seqQ)];
  bed.kernels.attention(shape, o, lse, q.at, k.at, v.at);
  const want = reference(c, scale, strides, q.x, k.x, v.x, dO.x);
  const what = `${dtype.name} ${JSON.stringify(c)}`;
  close(bed.get(dtype, o, sizeQ), want.o, epsilon + 2e-6, 5e-7, `o ${what}`);
  close(bed.get(float32, lse, want.lse.length), want.lse, 1e-6, 1e-6, `lse ${what}`);

  const [dq, dk, dv] = [bed.room(dtype, sizeQ), bed.room(dtype, sizeK), bed.room(dtype, sizeK)];
  bed.kernels.attentionBackward(shape, dq, dk, dv, dO.at, o, lse, q.at, k.at, v.at);
  // The stored output is rounded, and enters every gradient through its product with dO.
  const slack = dtype === bfloat16 ? 0.02 : 1e-5;
  close(bed.get(dtype, dq, sizeQ), want.dq, epsilon + 5e-6, slack, `dq ${what}`);
  close(bed.get(dtype, dk, sizeK), want.dk, epsilon + 5e-6, slack, `dk ${what}`);
  close(bed.get(dtype, dv, sizeK), want.dv, epsilon + 5e-6, slack / 5, `dv ${what}`);
}

const CASES: readonly Case[] = [
  { batch: 1, seqQ: 1, seqK: 1, heads: 1, kvHeads: 1, headDim: 1, causal: false },
  { batch: 2, seqQ: 5, seqK: 5, heads: 4, kvHeads: 2, headDim: 8, causal: true, gap: 3 },
  { batch: 2, seqQ: 3, seqK: 9, heads: 3, kvHeads: 1, headDim: 5, causal: true },
  { batch: 1, seqQ: 9, seqK: 4, heads: 2, kvHeads: 2, headDim: 6, causal: true }, // the first queries see nothing
  { batch: 1, seqQ: 7, seqK: 13, heads: 2, kvHeads: 1, headDim: 12, causal: false, gap: 1 },
  { batch: 1, seqQ: 1, seqK: 70, heads: 2, kvHeads: 1, headDim: 16, causal: true },
  { batch: 1, seqQ: 130, seqK: 130, heads: 2, kvHeads: 1, headDim: 9, causal: true },
  { batch: 1, seqQ: 67, seqK: 131, heads: 1, kvHeads: 1, headDim: 20, causal: true },
  { batch: 1, seqQ: 131, seqK: 66, heads: 1, kvHeads: 1, headDim: 8, causal: false },
  { batch: 1, seqQ: 6, seqK: 7, heads: 1, kvHeads: 1, headDim: 256, causal: false },
  { batch: 2, seqQ: 6, seqK: 7, heads: 2, kvHeads: 1, headDim: 8, causal: false, hidden: (b, j) => j < 3 + b },
  { batch: 2, seqQ: 70, seqK: 70, heads: 1, kvHeads: 1, headDim: 8, causal: true, hidden: (b, j) => j < 66 * b },
  { batch: 2, seqQ: 4, seqK: 4, heads: 1, kvHeads: 1, headDim: 4, causal: false, hidden: (b) => b === 1 },
];

for (const { dtype, epsilon } of FLOATS) {
  test(`attention() and its backward agree with the formula in ${dtype.name}`, async () => {
    const bed = await Bed.open();
    for (const c of CASES) check(bed, dtype, epsilon, c);
  });
}

test("attention() in the relaxed module agrees too", async () => {
  const variant: KernelVariant = "relaxed";
  const bed = await Bed.open(variant);
  for (const c of CASES.slice(0, 5)) check(bed, float32, 2 ** -24, c);
});

test("attention() stands scores far apart, and passes NaN on", async () => {
  const bed = await Bed.open();
  const shape: AttentionShape = {
    dtype: float32,
    batch: 1,
    seqQ: 2,
    seqK: 3,
    heads: 1,
    kvHeads: 1,
    headDim: 2,
    strideQ: 2,
    strideK: 2,
    strideV: 2,
    scale: 1,
    causal: false,
    keyMask: NO_PTR,
  };
  const [o, lse] = [bed.room(float32, 4), bed.room(float32, 2)];
  const q = bed.put(float32, [1000, 0, 0, 1]);
  const k = bed.put(float32, [1000, 0, -1000, 0, 0, 0]);
  const v = bed.put(float32, [1, 2, 3, 4, 5, 6]);
  bed.kernels.attention(shape, o, lse, q, k, v);
  close(bed.get(float32, o, 4), [1, 2, 3, 4], 1e-6, 0, "o");
  close(bed.get(float32, lse, 2), [1e6, Math.log(3)], 1e-6, 0, "lse");
  bed.kernels.attention(shape, o, lse, bed.put(float32, [NaN, 0, 0, 1]), k, v);
  const [a, b, c, d] = bed.get(float32, o, 4);
  assert.ok([a, b].every(Number.isNaN), "NaN is hidden");
  assert.deepEqual([c, d], [3, 4]);
});

test("attention() refuses sizes that it has no working space for", async () => {
  const bed = await Bed.open();
  const at = bed.room(float32, 300);
  const shape: AttentionShape = {
    dtype: float32,
    batch: 1,
    seqQ: 1,
    seqK: 1,
    heads: 1,
    kvHeads: 1,
    headDim: 257,
    strideQ: 257,
    strideK: 257,
    strideV: 257,
    scale: 1,
    causal: false,
    keyMask: NO_PTR,
  };
  assert.throws(() => bed.kernels.attention(shape, at, at, at, at, at), InternalError);
  const uneven = { ...shape, headDim: 4, heads: 3, kvHeads: 2 };
  assert.throws(() => bed.kernels.attention(uneven, at, at, at, at, at), InternalError);
});
