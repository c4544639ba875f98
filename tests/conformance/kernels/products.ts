/**
 * Matrix products against loops in float64, with gaps around each row, and attention against the plain formula.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, type DType, float16, float32 } from "../../../src/dtype.ts";
import type { PRODUCT_KERNELS } from "../../../src/device/kernels/products.ts";
import type { SINK_CASES } from "./attention_sinks.ts";
import type { Bed } from "./bed.ts";
import { gatedDelta, gatedDeltaBackward } from "./gated_delta.ts";
import {
  type Cases,
  type CasesOf,
  close,
  each,
  eachFloat,
  fround,
  pick,
  type Properties,
  spread,
  sum,
} from "./case.ts";

interface Product {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly alpha?: number;
  readonly beta?: number;
  readonly batch?: number;
  readonly repeatB?: boolean;
}

const PRODUCTS: readonly Product[] = [
  { m: 1, n: 1, k: 1 },
  { m: 4, n: 8, k: 16 },
  { m: 5, n: 9, k: 7 },
  { m: 1, n: 37, k: 50 },
  { m: 2, n: 5, k: 3 },
  { m: 3, n: 17, k: 65 },
  { m: 33, n: 1, k: 19 },
  { m: 7, n: 3, k: 1 },
  { m: 17, n: 33, k: 65 },
  { m: 8, n: 5, k: 31, alpha: -0.5, beta: 2 },
  { m: 1, n: 64, k: 128 },
  { m: 64, n: 1, k: 128 },
  { m: 0, n: 5, k: 3 },
  { m: 5, n: 0, k: 3 },
  { m: 5, n: 6, k: 0 },
  { m: 5, n: 6, k: 0, beta: 0.5 },
  { m: 9, n: 11, k: 13, alpha: -0.7 },
  { m: 9, n: 11, k: 13, beta: 1 },
  { m: 2, n: 11, k: 13, alpha: 0.3, beta: -0.6 },
  { m: 9, n: 11, k: 300, alpha: 0.3, beta: -0.6 },
  { m: 6, n: 7, k: 5, alpha: 0 },
  { m: 6, n: 7, k: 5, alpha: 0, beta: 2 },
  { m: 13, n: 10, k: 6, batch: 3 },
  { m: 13, n: 10, k: 6, batch: 3, repeatB: true, beta: 1 },
];
const TYPES: readonly (readonly [DType, DType])[] = [
  [float32, float32],
  ...[bfloat16, float16].flatMap((dtype) => [[dtype, float32] as const, [dtype, dtype] as const]),
];
const SWITCHES = [[false, false], [false, true], [true, false], [true, true]] as const;

function product(
  [dtype, outDtype]: readonly [DType, DType],
  [transA, transB]: readonly [boolean, boolean],
  { m, n, k, alpha = 1, beta = 0, batch = 1, repeatB = false }: Product,
): CasesOf<"gemm">[number] {
  const [rowsA, colsA] = transA ? [k, m] : [m, k];
  const [rowsB, colsB] = transB ? [n, k] : [k, n];
  const [lda, ldb, ldc] = [colsA + 3, colsB + 1, n + 2];
  const [strideA, strideB, strideC] = [rowsA * lda + 5, repeatB ? 0 : rowsB * ldb + 2, m * ldc + 1];
  const strides = { lda, ldb, ldc, batch, strideA, strideB, strideC };
  return {
    args: { dtype, outDtype, transA, transB, m, n, k, alpha, beta, ...strides },
    expect: (before) => {
      const [a, b, c] = [before("a"), before("b"), before("c")];
      const values: (number | undefined)[] = c.map(() => undefined);
      for (let place = 0; place < batch * m * n; place++) {
        const [z, i, j] = [Math.floor(place / (m * n)), Math.floor(place / n) % m, place % n];
        const total = sum(k, (p) => {
          const x = pick(a, z * strideA + (transA ? p * lda + i : i * lda + p));
          return x * pick(b, z * strideB + (transB ? j * ldb + p : p * ldb + j));
        });
        const at = z * strideC + i * ldc + j;
        values[at] = fround(alpha) * total + (beta === 0 ? 0 : fround(beta) * pick(c, at));
      }
      const relative = outDtype === float32 ? 1e-6 : 2 ** -8 * 1.01;
      return { c: { values, relative, absolute: 3e-7 * Math.sqrt(k + 1) } };
    },
  };
}

const gemm: CasesOf<"gemm"> = [
  ...TYPES.flatMap((types) => SWITCHES.flatMap((trans) => PRODUCTS.map((sizes) => product(types, trans, sizes)))),
  // Across every edge of blocks.
  product([float32, float32], [false, true], { m: 131, n: 21, k: 259 }),
  product([float32, float32], [true, false], { m: 21, n: 519, k: 33, beta: 1 }),
  product([bfloat16, bfloat16], [false, false], { m: 1027, n: 9, k: 21 }),
  product([bfloat16, bfloat16], [true, true], { m: 19, n: 517, k: 261, beta: 0.5 }),
];

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
  /** Elements between rows beyond the dense ones. */
  readonly gap?: number;
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
];

/** One attention: its arguments, its arrays, and the formula's results and gradients. */
function attend(dtype: DType, attention: Attention) {
  const { batch, seqQ, seqK, heads, kvHeads, headDim, valueDim = headDim, causal, window = 0, hidden, gap = 0 } =
    attention;
  const scale = fround(1 / Math.sqrt(headDim));
  const [strideQ, strideK, strideV] = [heads * headDim + gap, kvHeads * headDim + 2 * gap, kvHeads * valueDim + gap];
  const span = (rows: number, stride: number, row: number): number => (rows - 1) * stride + row;
  const q = spread(span(batch * seqQ, strideQ, heads * headDim), 1, 2, dtype);
  const k = spread(span(batch * seqK, strideK, kvHeads * headDim), 2, 2, dtype);
  const v = spread(span(batch * seqK, strideV, kvHeads * valueDim), 3, 1, dtype);
  const dO = spread(batch * seqQ * heads * valueDim, 4, 1, dtype);
  const zeros = (rows: number, width: number): number[] => new Array<number>(batch * rows * width).fill(0);
  const [o, dq] = [zeros(seqQ, heads * valueDim), zeros(seqQ, heads * headDim)];
  const [dk, dv] = [zeros(seqK, kvHeads * headDim), zeros(seqK, kvHeads * valueDim)];
  const lse = new Array<number>(batch * heads * seqQ).fill(-Infinity);
  const add = (list: number[], at: number, value: number): void => {
    list[at] = pick(list, at) + value;
  };
  for (let place = 0; place < batch * heads * seqQ; place++) {
    const [b, h, i] = [Math.floor(place / (heads * seqQ)), Math.floor(place / seqQ) % heads, place % seqQ];
    const kv = Math.floor(h / (heads / kvHeads));
    const [row, out] = [((b * seqQ + i) * heads + h) * headDim, ((b * seqQ + i) * heads + h) * valueDim];
    const qAt = (b * seqQ + i) * strideQ + h * headDim;
    const kAt = (j: number): number => (b * seqK + j) * strideK + kv * headDim;
    const vAt = (j: number): number => (b * seqK + j) * strideV + kv * valueDim;
    const dense = (j: number): number => (b * seqK + j) * kvHeads + kv;
    const own = i + seqK - seqQ;
    const seen = each(seqK, (j) => j).filter((j) => {
      return (!causal || j <= own) && (window === 0 || j > own - window) && !hidden?.(b, j, i);
    });
    if (seen.length === 0) continue;
    const scores = seen.map((j) => scale * sum(headDim, (d) => pick(q, qAt + d) * pick(k, kAt(j) + d)));
    const top = Math.max(...scores);
    const total = scores.reduce((t, s) => t + Math.exp(s - top), 0);
    lse[place] = top + Math.log(total);
    const p = scores.map((s) => Math.exp(s - top) / total);
    const dp = seen.map((j) => sum(valueDim, (d) => pick(dO, out + d) * pick(v, vAt(j) + d)));
    const delta = sum(seen.length, (s) => pick(p, s) * pick(dp, s));
    seen.forEach((j, s) => {
      const ds = pick(p, s) * (pick(dp, s) - delta) * scale;
      for (let d = 0; d < valueDim; d++) {
        add(o, out + d, pick(p, s) * pick(v, vAt(j) + d));
        add(dv, dense(j) * valueDim + d, pick(p, s) * pick(dO, out + d));
      }
      for (let d = 0; d < headDim; d++) {
        add(dq, row + d, ds * pick(k, kAt(j) + d));
        add(dk, dense(j) * headDim + d, ds * pick(q, qAt + d));
      }
    });
  }
  const sizes = { batch, seqQ, seqK, heads, kvHeads, headDim, valueDim, strideQ, strideK, strideV };
  const maskRows = (hidden?.length ?? 0) > 2 ? seqQ : 1;
  const args = { dtype, ...sizes, scale, causal, window, maskRows };
  const keyMask = each(batch * maskRows * seqK, (at) => {
    const row = Math.floor(at / seqK);
    return Number(!hidden?.(Math.floor(row / maskRows), at % seqK, row % maskRows));
  });
  const arrays = hidden === undefined ? { q, k, v } : { q, k, v, keyMask };
  const without = hidden === undefined ? ["keyMask"] as const : [];
  return { args, arrays, without, o, lse, dO, dq, dk, dv };
}

const attention: CasesOf<"attention"> = eachFloat((dtype, epsilon) =>
  ATTENTIONS.map((one) => {
    const { args, arrays, without, o, lse } = attend(dtype, one);
    const expect = () => ({
      o: { values: o, relative: epsilon + 2e-6, absolute: 5e-7 },
      lse: { values: lse, relative: 1e-6, absolute: 1e-6 },
    });
    return { args, arrays, without, expect };
  })
);

const attentionBackward: CasesOf<"attentionBackward"> = eachFloat((dtype, epsilon) =>
  ATTENTIONS.map((one) => {
    const { args, arrays, without, o, lse, dO, dq, dk, dv } = attend(dtype, one);
    // The stored output is rounded, and enters every gradient through its product with dO.
    const [relative, slack] = [epsilon + 5e-6, 2.6 * 2 * epsilon + 1e-5];
    const expect = () => ({
      dq: { values: dq, relative, absolute: slack },
      dk: { values: dk, relative, absolute: slack },
      dv: { values: dv, relative, absolute: slack / 5 },
    });
    return { args, arrays: { ...arrays, o, lse, dO }, without, expect };
  })
);

const CONVOLUTIONS = [[2, 7, 5, 3], [1, 1, 3, 4], [3, 2, 17, 1], [2, 9, 33, 4], [0, 4, 2, 2]] as const;
/** Runs `f` with each place of an output, that of an input it meets, and the weight between them. */
function eachTap(
  [batch, seq, channels, width]: typeof CONVOLUTIONS[number],
  f: (out: number, into: number, weight: number) => void,
): void {
  for (let out = 0; out < batch * seq * channels; out++) {
    const [t, c] = [Math.floor(out / channels) % seq, out % channels];
    for (let k = Math.max(0, width - 1 - t); k < width; k++) f(out, out + (k + 1 - width) * channels, c * width + k);
  }
}

const causalConv: CasesOf<"causalConv"> = eachFloat((dtype, epsilon) =>
  CONVOLUTIONS.map((sizes) => {
    const [batch, seq, channels, width] = sizes;
    return {
      args: { dtype, batch, seq, channels, width },
      expect: (before) => {
        const [x, w] = [before("x"), before("w")];
        const values = x.map(() => 0);
        eachTap(sizes, (out, into, weight) => {
          values[out] = pick(values, out) + pick(x, into) * pick(w, weight);
        });
        return { y: { values, relative: epsilon, absolute: 5e-7 } };
      },
    };
  })
);

const causalConvBackward: CasesOf<"causalConvBackward"> = eachFloat((dtype, epsilon) =>
  CONVOLUTIONS.map((sizes) => {
    const [batch, seq, channels, width] = sizes;
    return {
      args: { dtype, batch, seq, channels, width },
      expect: (before) => {
        const [x, w, dy] = [before("x"), before("w"), before("dy")];
        const [dx, dw] = [x.map(() => 0), w.map(() => 0)];
        eachTap(sizes, (out, into, weight) => {
          dx[into] = pick(dx, into) + pick(dy, out) * pick(w, weight);
          dw[weight] = pick(dw, weight) + pick(dy, out) * pick(x, into);
        });
        return {
          dx: { values: dx, relative: epsilon, absolute: 5e-7 },
          dw: { values: dw, relative: 1e-7, absolute: 1e-9 },
        };
      },
    };
  })
);

/** Cases of kernels of products. */
export const PRODUCT_CASES: Cases<Exclude<keyof typeof PRODUCT_KERNELS, keyof typeof SINK_CASES>> = {
  gemm,
  attention,
  attentionBackward,
  causalConv,
  causalConvBackward,
  gatedDelta,
  gatedDeltaBackward,
};

/** A dense float32 product, [m, k] by [k, n] or its transpose. */
function multiply(
  bed: Bed,
  [m, n, k]: readonly [number, number, number],
  [a, b, c]: readonly [readonly number[], readonly number[], readonly number[]],
  { transB = false, beta = 0, ldb = transB ? k : n }: { transB?: boolean; beta?: number; ldb?: number } = {},
): number[] {
  const arrays = { a: bed.put(float32, a), b: bed.put(float32, b), c: bed.put(float32, c) };
  const strides = { lda: k, ldb, ldc: n, batch: 1, strideA: 0, strideB: 0, strideC: 0 };
  const args = { dtype: float32, outDtype: float32, transA: false, transB, m, n, k, alpha: 1, beta };
  bed.device.kernels.gemm({ ...args, ...strides, ...arrays });
  return bed.get(float32, arrays.c, m * n);
}

/** What else holds for kernels that multiply matrices. */
export const PRODUCT_PROPERTIES: Properties = {
  "gemm() passes NaN and infinities on and ignores c when beta is 0": (bed) => {
    for (const m of [1, 6]) {
      for (const transB of [false, true]) {
        const one = (a: number, b: number, beta: number, c: number): number[] => {
          const arrays = [each(2 * m, () => a), [b, 1], each(m, () => c)] as const;
          return multiply(bed, [m, 1, 2], arrays, { transB, beta });
        };
        const all = (value: number): number[] => each(m, () => value);
        assert.deepEqual(one(NaN, 1, 0, 0), all(NaN));
        assert.deepEqual(one(0, Infinity, 0, 0), all(NaN));
        assert.deepEqual(one(1, Infinity, 0, NaN), all(Infinity));
        assert.deepEqual(one(1, 1, 1, NaN), all(NaN));
        assert.deepEqual(one(1, 1, 0, NaN), all(2));
      }
    }
  },
  "attention() stands scores far apart, and passes NaN on": (bed) => {
    const sizes = {
      batch: 1,
      seqQ: 2,
      seqK: 3,
      heads: 1,
      kvHeads: 1,
      headDim: 2,
      valueDim: 2,
      strideQ: 2,
      strideK: 2,
      strideV: 2,
    };
    const args = { dtype: float32, ...sizes, scale: 1, causal: false, window: 0, maskRows: 1 };
    const [o, lse] = [bed.room(float32, 4), bed.room(float32, 2)];
    const [k, v] = [bed.put(float32, [1000, 0, -1000, 0, 0, 0]), bed.put(float32, [1, 2, 3, 4, 5, 6])];
    bed.device.kernels.attention({ ...args, o, lse, q: bed.put(float32, [1000, 0, 0, 1]), k, v });
    close(bed.get(float32, o, 4), [1, 2, 3, 4], 1e-6, 0, "o");
    close(bed.get(float32, lse, 2), [1e6, Math.log(3)], 1e-6, 0, "lse");
    bed.device.kernels.attention({ ...args, o, lse, q: bed.put(float32, [NaN, 0, 0, 1]), k, v });
    assert.deepEqual(bed.get(float32, o, 4), [NaN, NaN, 3, 4]);
  },
};

/** What holds for products of the WASM kernels, and not of every library. */
export const OWN_PRODUCT_PROPERTIES: Properties = {
  "gemm() gives an element the same bits whatever the other sizes": (bed) => {
    const [m, n, k] = [37, 45, 300];
    const [a, b, c] = [bed.values(m * k), bed.values(k * n), each(m * n, () => 0)];
    const whole = multiply(bed, [m, n, k], [a, b, c]);
    const part = multiply(bed, [10, 11, k], [a.slice(0, 10 * k), b, c.slice(0, 110)], { ldb: n });
    part.forEach((v, at) => assert.equal(v, whole[Math.floor(at / 11) * n + at % 11]));
  },
};
