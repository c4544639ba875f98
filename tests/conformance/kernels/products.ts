/**
 * Matrix products against loops in float64, with gaps around each row.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, type DType, float16, float32 } from "../../../src/dtype.ts";
import type { PRODUCT_KERNELS } from "../../../src/device/kernels/products.ts";
import type { SINK_CASES } from "./attention_sinks.ts";
import type { Bed } from "./bed.ts";
import { attention, attentionBackward } from "./attention.ts";
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
  startsOf,
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

/** Batch, seq, channels and width; and the lengths of the documents in each row, where there are some. */
const CONVOLUTIONS = [
  [2, 7, 5, 3],
  [1, 1, 3, 4],
  [3, 2, 17, 1],
  [2, 9, 33, 4],
  [0, 4, 2, 2],
  [2, 9, 17, 4, [[1, 2, 6], [9]]],
] as const;

/** The beginnings of documents that a convolution is given, or that it is given none. */
function documentsOf([, , , , documents]: typeof CONVOLUTIONS[number]) {
  const starts = documents && startsOf(documents);
  return starts === undefined ? { without: ["starts"] as const } : { arrays: { starts } };
}

/** Calls `f` with each place of an output, the place of an input that contributes to it, and the weight between them. */
function eachTap(
  sizes: typeof CONVOLUTIONS[number],
  f: (out: number, into: number, weight: number) => void,
): void {
  const [batch, seq, channels, width] = sizes;
  const { arrays } = documentsOf(sizes);
  for (let out = 0; out < batch * seq * channels; out++) {
    const [token, c] = [Math.floor(out / channels), out % channels];
    const before = token % seq - (arrays === undefined ? 0 : pick(arrays.starts, token));
    for (let k = Math.max(0, width - 1 - before); k < width; k++) {
      f(out, out + (k + 1 - width) * channels, c * width + k);
    }
  }
}

const causalConv: CasesOf<"causalConv"> = eachFloat((dtype, epsilon) =>
  CONVOLUTIONS.map((sizes) => {
    const [batch, seq, channels, width] = sizes;
    return {
      args: { dtype, batch, seq, channels, width },
      ...documentsOf(sizes),
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
      ...documentsOf(sizes),
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

/** Further tests of kernels that multiply matrices. */
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
    const switches = { scale: 1, softcap: 0, causal: false, window: 0, maskRows: 1, p: 0, key: 0, sample: 0 };
    const args = { dtype: float32, ...sizes, ...switches };
    const [o, lse] = [bed.room(float32, 4), bed.room(float32, 2)];
    const [k, v] = [bed.put(float32, [1000, 0, -1000, 0, 0, 0]), bed.put(float32, [1, 2, 3, 4, 5, 6])];
    bed.device.kernels.attention({ ...args, o, lse, q: bed.put(float32, [1000, 0, 0, 1]), k, v });
    close(bed.get(float32, o, 4), [1, 2, 3, 4], 1e-6, 0, "o");
    close(bed.get(float32, lse, 2), [1e6, Math.log(3)], 1e-6, 0, "lse");
    bed.device.kernels.attention({ ...args, o, lse, q: bed.put(float32, [NaN, 0, 0, 1]), k, v });
    assert.deepEqual(bed.get(float32, o, 4), [NaN, NaN, 3, 4]);
  },
};

/** Tests of products that the WASM kernels pass, and not every library. */
export const OWN_PRODUCT_PROPERTIES: Properties = {
  "gemm() gives an element the same bits whatever the other sizes": (bed) => {
    const [m, n, k] = [37, 45, 300];
    const [a, b, c] = [bed.values(m * k), bed.values(k * n), each(m * n, () => 0)];
    const whole = multiply(bed, [m, n, k], [a, b, c]);
    const part = multiply(bed, [10, 11, k], [a.slice(0, 10 * k), b, c.slice(0, 110)], { ldb: n });
    part.forEach((v, at) => assert.equal(v, whole[Math.floor(at / 11) * n + at % 11]));
  },
};
