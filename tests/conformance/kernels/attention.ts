/**
 * Attention against the plain formula in float64.
 *
 * @module
 */
import assert from "node:assert/strict";
import { type DType, float16, float32 } from "../../../src/dtype.ts";
import { usualFirst } from "../../support/share.ts";
import { type CasesOf, each, eachFloat, fround, numbers, pick, spread, startsOf, sum } from "./case.ts";
import { dropoutFactor } from "./philox.ts";

interface Attention {
  readonly batch: number;
  readonly seqQ: number;
  readonly seqK: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** @default headDim */
  readonly valueDim?: number;
  readonly causal: boolean;
  readonly window?: number;
  /** Hides these keys of each batch entry; of each query where it asks for that. */
  readonly hidden?: (batch: number, key: number, query: number) => boolean;
  /** Lengths of the documents in each row of queries, which have as many keys. */
  readonly documents?: readonly (readonly number[])[];
  /** Elements between rows beyond the dense ones. */
  readonly gap?: number;
  /** Probability that a key is dropped for a query. */
  readonly p?: number;
  /** @default 1 / sqrt(headDim) */
  readonly scale?: number;
  /** @default none */
  readonly softcap?: number;
}

const ATTENTIONS: readonly Attention[] = [
  { batch: 1, seqQ: 1, seqK: 1, heads: 1, kvHeads: 1, headDim: 1, causal: false },
  { batch: 2, seqQ: 5, seqK: 5, heads: 4, kvHeads: 2, headDim: 8, causal: true, gap: 3 },
  { batch: 2, seqQ: 3, seqK: 9, heads: 3, kvHeads: 1, headDim: 5, causal: true },
  { batch: 2, seqQ: 9, seqK: 9, heads: 4, kvHeads: 2, headDim: 24, valueDim: 7, causal: true, gap: 3 },
  { batch: 1, seqQ: 67, seqK: 131, heads: 2, kvHeads: 1, headDim: 3, valueDim: 40, causal: true },
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
  {
    batch: 2,
    seqQ: 67,
    seqK: 131,
    heads: 2,
    kvHeads: 1,
    headDim: 6,
    causal: true,
    hidden: (b, j, i) => (3 * i + j + b) % 5 > 1,
  },
  { batch: 2, seqQ: 9, seqK: 9, heads: 4, kvHeads: 2, headDim: 8, causal: true, window: 1, gap: 3 },
  { batch: 1, seqQ: 40, seqK: 40, heads: 2, kvHeads: 1, headDim: 5, causal: true, window: 7 },
  { batch: 1, seqQ: 3, seqK: 12, heads: 1, kvHeads: 1, headDim: 8, causal: true, window: 4 },
  { batch: 1, seqQ: 9, seqK: 4, heads: 1, kvHeads: 1, headDim: 8, causal: true, window: 3 },
  { batch: 1, seqQ: 300, seqK: 300, heads: 2, kvHeads: 1, headDim: 6, causal: true, window: 130 },
  { batch: 1, seqQ: 270, seqK: 400, heads: 1, kvHeads: 1, headDim: 4, causal: true, window: 20 }, // blocks are left out
  {
    batch: 2,
    seqQ: 30,
    seqK: 30,
    heads: 1,
    kvHeads: 1,
    headDim: 8,
    causal: true,
    window: 5,
    hidden: (b, j) => j < 9 * b,
  },
  { batch: 3, seqQ: 9, seqK: 9, heads: 4, kvHeads: 2, headDim: 8, valueDim: 5, causal: true, gap: 3, p: 0.3 },
  { batch: 1, seqQ: 70, seqK: 131, heads: 2, kvHeads: 1, headDim: 6, causal: false, p: 0.1 },
  { batch: 2, seqQ: 140, seqK: 140, heads: 2, kvHeads: 1, headDim: 5, causal: true, window: 130, p: 0.5 },
  { batch: 1, seqQ: 7, seqK: 7, heads: 1, kvHeads: 1, headDim: 4, causal: false, hidden: (_, j) => j === 2, p: 0.2 },
  { batch: 1, seqQ: 5, seqK: 5, heads: 2, kvHeads: 1, headDim: 4, causal: true, p: 1 },
  {
    batch: 2,
    seqQ: 9,
    seqK: 9,
    heads: 4,
    kvHeads: 2,
    headDim: 8,
    valueDim: 5,
    causal: true,
    gap: 3,
    documents: [[4, 1, 4], [9]],
  },
  { batch: 1, seqQ: 12, seqK: 12, heads: 2, kvHeads: 1, headDim: 6, causal: true, documents: [[5, 7]], p: 0.3 },
  { batch: 1, seqQ: 300, seqK: 300, heads: 2, kvHeads: 1, headDim: 6, causal: true, documents: [[3, 137, 120, 40]] },
  {
    batch: 2,
    seqQ: 270,
    seqK: 270,
    heads: 1,
    kvHeads: 1,
    headDim: 4,
    causal: true,
    window: 20,
    documents: [[130, 15, 125], [1, 1, 268]],
    hidden: (b, j) => j % 7 === b,
  },
  { batch: 2, seqQ: 5, seqK: 5, heads: 4, kvHeads: 2, headDim: 8, causal: true, gap: 3, softcap: 0.5 },
  { batch: 1, seqQ: 67, seqK: 131, heads: 2, kvHeads: 1, headDim: 3, valueDim: 40, causal: true, softcap: 2 },
  { batch: 1, seqQ: 131, seqK: 66, heads: 1, kvHeads: 1, headDim: 8, causal: false, softcap: 50, p: 0.2 },
  { batch: 1, seqQ: 40, seqK: 40, heads: 2, kvHeads: 1, headDim: 5, causal: true, window: 7, softcap: 0.01 },
  {
    batch: 2,
    seqQ: 30,
    seqK: 30,
    heads: 1,
    kvHeads: 1,
    headDim: 8,
    causal: true,
    documents: [[5, 25], [30]],
    hidden: (b, j) => j < 9 * b,
    softcap: 1,
    scale: -2,
  },
];

/**
 * Of 2-byte floats, whose products tensor cores make by tiles: each size of heads, and lengths about a tile's edges.
 */
const TILED: readonly Attention[] = [
  { batch: 1, seqQ: 1, seqK: 1, heads: 2, kvHeads: 1, headDim: 64, causal: true },
  { batch: 1, seqQ: 1, seqK: 130, heads: 2, kvHeads: 1, headDim: 128, causal: true },
  { batch: 2, seqQ: 17, seqK: 17, heads: 4, kvHeads: 2, headDim: 64, causal: true, gap: 8 },
  { batch: 1, seqQ: 63, seqK: 63, heads: 2, kvHeads: 2, headDim: 80, causal: true },
  { batch: 2, seqQ: 70, seqK: 70, heads: 4, kvHeads: 2, headDim: 64, causal: true, softcap: 1, window: 33 },
  { batch: 1, seqQ: 65, seqK: 130, heads: 2, kvHeads: 1, headDim: 128, causal: true, softcap: 30, p: 0.1 },
  { batch: 1, seqQ: 64, seqK: 64, heads: 2, kvHeads: 1, headDim: 128, causal: true },
  { batch: 1, seqQ: 65, seqK: 65, heads: 3, kvHeads: 1, headDim: 96, causal: true, gap: 5 },
  { batch: 1, seqQ: 130, seqK: 130, heads: 4, kvHeads: 2, headDim: 64, causal: true },
  { batch: 1, seqQ: 130, seqK: 130, heads: 2, kvHeads: 1, headDim: 128, causal: false },
  { batch: 1, seqQ: 65, seqK: 130, heads: 2, kvHeads: 1, headDim: 192, valueDim: 128, causal: true },
  { batch: 1, seqQ: 65, seqK: 64, heads: 2, kvHeads: 1, headDim: 256, causal: true },
  { batch: 1, seqQ: 130, seqK: 130, heads: 2, kvHeads: 1, headDim: 256, causal: true, window: 40 },
  { batch: 1, seqQ: 130, seqK: 200, heads: 2, kvHeads: 1, headDim: 128, causal: true, window: 33 },
  { batch: 1, seqQ: 200, seqK: 130, heads: 2, kvHeads: 1, headDim: 64, causal: true, window: 64 },
  { batch: 1, seqQ: 130, seqK: 130, heads: 2, kvHeads: 1, headDim: 64, causal: false, window: 70 },
  { batch: 2, seqQ: 65, seqK: 65, heads: 2, kvHeads: 1, headDim: 64, causal: true, hidden: (b, j) => j < 20 * b },
  {
    batch: 2,
    seqQ: 17,
    seqK: 130,
    heads: 2,
    kvHeads: 1,
    headDim: 96,
    causal: true,
    hidden: (_, j, i) => (i + j) % 3 > 1,
  },
  { batch: 2, seqQ: 130, seqK: 130, heads: 2, kvHeads: 1, headDim: 128, causal: true, p: 0.2 },
  { batch: 1, seqQ: 65, seqK: 65, heads: 2, kvHeads: 1, headDim: 64, causal: true, scale: -0.1 },
  { batch: 1, seqQ: 17, seqK: 33, heads: 1, kvHeads: 1, headDim: 64, causal: false, scale: 0 },
  { batch: 2, seqQ: 130, seqK: 130, heads: 4, kvHeads: 2, headDim: 64, causal: true, documents: [[63, 66, 1], [130]] },
  { batch: 1, seqQ: 200, seqK: 200, heads: 2, kvHeads: 1, headDim: 128, causal: true, documents: [[70, 129, 1]] },
  {
    batch: 1,
    seqQ: 200,
    seqK: 200,
    heads: 2,
    kvHeads: 1,
    headDim: 96,
    causal: true,
    window: 33,
    documents: [[64, 40, 96]],
    p: 0.2,
  },
];
const DROPOUT = { key: 987654321012, sample: 2 ** 32 - 1 };

/** The sum of products of `n` elements; of one that is not there, NaN. */
function dot(a: Float64Array, aAt: number, b: Float64Array, bAt: number, n: number): number {
  let total = 0;
  for (let i = 0; i < n; i++) total += (a[aAt + i] ?? NaN) * (b[bAt + i] ?? NaN);
  return total;
}

/** Adds `n` elements, times a factor, to others. */
function addTimes(to: Float64Array, toAt: number, factor: number, from: Float64Array, fromAt: number, n: number): void {
  for (let i = 0; i < n; i++) to[toAt + i] = (to[toAt + i] ?? NaN) + factor * (from[fromAt + i] ?? NaN);
}

/** One attention: its arguments, its arrays, and how the gradient of its output begins. */
function problemOf(dtype: DType, attention: Attention) {
  const { batch, seqQ, seqK, heads, kvHeads, headDim, valueDim = headDim, causal, window = 0 } = attention;
  const { hidden, gap = 0, p = 0, softcap: bound = 0 } = attention;
  const scale = fround(attention.scale ?? 1 / Math.sqrt(headDim));
  const [strideQ, strideK, strideV] = [heads * headDim + gap, kvHeads * headDim + 2 * gap, kvHeads * valueDim + gap];
  const span = (rows: number, stride: number, row: number): number => (rows - 1) * stride + row;
  const q = spread(span(batch * seqQ, strideQ, heads * headDim), 1, 2, dtype);
  const k = spread(span(batch * seqK, strideK, kvHeads * headDim), 2, 2, dtype);
  const v = spread(span(batch * seqK, strideV, kvHeads * valueDim), 3, 1, dtype);
  const dO = spread(batch * seqQ * heads * valueDim, 4, 1, dtype);
  const sizes = { batch, seqQ, seqK, heads, kvHeads, headDim, valueDim, strideQ, strideK, strideV };
  const maskRows = (hidden?.length ?? 0) > 2 ? seqQ : 1;
  const softcap = fround(bound);
  const args = { dtype, ...sizes, scale, softcap, causal, window, maskRows, p, ...DROPOUT };
  const keyMask = each(batch * maskRows * seqK, (at) => {
    const row = Math.floor(at / seqK);
    return Number(!hidden?.(Math.floor(row / maskRows), at % seqK, row % maskRows));
  });
  const inputs = { q, k, v };
  const starts = attention.documents && startsOf(attention.documents);
  const arrays = { ...inputs, ...hidden && { keyMask }, ...starts && { starts } };
  const without = [
    ...hidden === undefined ? ["keyMask"] as const : [],
    ...starts === undefined ? ["starts"] as const : [],
  ];
  return { args, inputs, arrays, without, dO, hidden, starts };
}

/** The formula's results and gradients. */
function attend({ args, inputs, dO: dOutput, hidden, starts }: ReturnType<typeof problemOf>) {
  const { batch, seqQ, seqK, heads, kvHeads, headDim, valueDim, strideQ, strideK, strideV } = args;
  const { scale, softcap, causal, window, p: dropped } = args;
  const bounded = (score: number): number => softcap === 0 ? score : softcap * Math.tanh(score / softcap);
  const slope = (score: number): number => softcap === 0 ? 1 : 1 - (score / softcap) ** 2;
  const [q, k, v, dO] = [inputs.q, inputs.k, inputs.v, dOutput].map((list) => new Float64Array(list));
  assert.ok(q !== undefined && k !== undefined && v !== undefined && dO !== undefined);
  const zeros = (rows: number, width: number): Float64Array => new Float64Array(batch * rows * width);
  const [o, dq] = [zeros(seqQ, heads * valueDim), zeros(seqQ, heads * headDim)];
  const [dk, dv] = [zeros(seqK, kvHeads * headDim), zeros(seqK, kvHeads * valueDim)];
  const sizes = dO.map((value) => Math.abs(value));
  // The sum of the magnitudes of dv's terms.
  const sizesOfDv = zeros(seqK, kvHeads * valueDim);
  const lse = new Array<number>(batch * heads * seqQ).fill(-Infinity);
  for (let place = 0; place < batch * heads * seqQ; place++) {
    const [b, h, i] = [Math.floor(place / (heads * seqQ)), Math.floor(place / seqQ) % heads, place % seqQ];
    const kv = Math.floor(h / (heads / kvHeads));
    const [row, out] = [((b * seqQ + i) * heads + h) * headDim, ((b * seqQ + i) * heads + h) * valueDim];
    const qAt = (b * seqQ + i) * strideQ + h * headDim;
    const kAt = (j: number): number => (b * seqK + j) * strideK + kv * headDim;
    const vAt = (j: number): number => (b * seqK + j) * strideV + kv * valueDim;
    const dense = (j: number): number => (b * seqK + j) * kvHeads + kv;
    const own = i + seqK - seqQ;
    const first = starts === undefined ? 0 : pick(starts, b * seqQ + i);
    const seen = each(seqK, (j) => j).filter((j) => {
      return j >= first && (!causal || j <= own) && (window === 0 || j > own - window) && !hidden?.(b, j, i);
    });
    if (seen.length === 0) continue;
    const scores = seen.map((j) => bounded(scale * dot(q, qAt, k, kAt(j), headDim)));
    const top = Math.max(...scores);
    const total = scores.reduce((t, s) => t + Math.exp(s - top), 0);
    lse[place] = top + Math.log(total);
    const p = scores.map((s) => Math.exp(s - top) / total);
    const factors = seen.map((col) => {
      return dropoutFactor(dropped, { key: DROPOUT.key, sample: DROPOUT.sample + b, plane: h, row: i, col });
    });
    const kept = p.map((share, s) => share * pick(factors, s));
    const dp = seen.map((j, s) => pick(factors, s) * dot(dO, out, v, vAt(j), valueDim));
    const delta = sum(seen.length, (s) => pick(p, s) * pick(dp, s));
    seen.forEach((j, s) => {
      const ds = pick(p, s) * (pick(dp, s) - delta) * slope(pick(scores, s)) * scale;
      addTimes(o, out, pick(kept, s), v, vAt(j), valueDim);
      addTimes(dv, dense(j) * valueDim, pick(kept, s), dO, out, valueDim);
      addTimes(sizesOfDv, dense(j) * valueDim, pick(kept, s), sizes, out, valueDim);
      addTimes(dq, row, ds, k, kAt(j), headDim);
      addTimes(dk, dense(j) * headDim, ds, q, qAt, headDim);
    });
  }
  const mostOfDv = sizesOfDv.reduce((most, size) => Math.max(most, size), 0);
  return { o: numbers(o), lse, dq: numbers(dq), dk: numbers(dk), dv: numbers(dv), mostOfDv };
}

/** The attentions of an element type; of those by tiles, which take long, each is of one type unless all tests are run. */
function attentionsOf(dtype: DType): readonly Attention[] {
  if (dtype === float32) return ATTENTIONS;
  return [...ATTENTIONS, ...usualFirst(TILED, (place) => place % 2 === Number(dtype === float16))];
}

/** The attentions of all element types; the formula's results are those that a first call asks for, as they take seconds. */
const PROBLEMS = eachFloat((dtype, epsilon) =>
  attentionsOf(dtype).map((one) => {
    const problem = problemOf(dtype, one);
    let attended: ReturnType<typeof attend> | undefined;
    return { dtype, epsilon, one, ...problem, attended: () => attended ??= attend(problem) };
  })
);

/** Cases of the forward. */
export const attention: CasesOf<"attention"> = PROBLEMS.map(
  ({ dtype, epsilon, one, args, arrays, without, attended }) => {
    // Weights, which are at most 1 in sum, may be rounded before they are multiplied by values of at most 1; dropout
    // makes what it keeps larger. Tensor cores cut their sums off, each of headDim / 16 at 2^-22 of the largest,
    // which are below 4 here.
    const isTwoByte = dtype !== float32;
    const weights = isTwoByte ? epsilon / (1 - Math.min(one.p ?? 0, 0.5)) : 0;
    const expect = () => {
      const { o, lse } = attended();
      return {
        o: { values: o, relative: epsilon + 2e-6, absolute: 5e-7 + weights },
        lse: { values: lse, relative: 1e-6, absolute: isTwoByte ? 1e-5 : 1e-6 },
      };
    };
    return { args, arrays, without, expect };
  },
);

/** Cases of the backward. */
export const attentionBackward: CasesOf<"attentionBackward"> = PROBLEMS.map(
  ({ dtype, epsilon, args, arrays, without, dO, attended }) => {
    // The stored output is rounded, and enters every gradient through its product with dO.
    const [relative, slack] = [epsilon + 5e-6, 2.6 * 2 * epsilon + 1e-5];
    const expect = () => {
      const { dq, dk, dv, mostOfDv } = attended();
      // Of 2-byte floats each weight may be rounded before it is multiplied by dO; as gradients of scores may, which
      // are small beside what the output's rounding makes of them.
      const ofValues = dtype === float32 ? slack / 5 : epsilon * mostOfDv + 1e-5;
      return {
        dq: { values: dq, relative, absolute: slack },
        dk: { values: dk, relative, absolute: slack },
        dv: { values: dv, relative, absolute: ofValues },
      };
    };
    return {
      args,
      without,
      expect,
      get arrays() {
        const { o, lse } = attended();
        return { ...arrays, o, lse, dO };
      },
    };
  },
);
