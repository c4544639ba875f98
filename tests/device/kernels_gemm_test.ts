/**
 * Matrix products against loops in float64: every transpose, size, batch and factor, with padding around each row.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { bfloat16, float32 } from "../../src/dtype.ts";
import type { DType } from "../../src/dtype.ts";
import { DTypeError } from "../../src/errors.ts";
import type { GemmArgs } from "../../src/device/kernels.ts";
import { Bed, close, fround, pick, sum } from "./kernels_bed.ts";

interface Case {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly alpha?: number;
  readonly beta?: number;
  readonly batch?: number;
  readonly repeatB?: boolean;
}

const TYPES: readonly (readonly [DType, DType])[] = [[float32, float32], [bfloat16, float32], [bfloat16, bfloat16]];

/** Runs one product with rows padded by a few elements and compares it, the padding included. */
function check(bed: Bed, dtype: DType, outDtype: DType, transA: boolean, transB: boolean, sizes: Case): void {
  const { m, n, k, alpha = 1, beta = 0, batch = 1, repeatB = false } = sizes;
  const [rowsA, colsA] = transA ? [k, m] : [m, k];
  const [rowsB, colsB] = transB ? [n, k] : [k, n];
  const [lda, ldb, ldc] = [colsA + 3, colsB + 1, n + 2];
  const [strideA, strideB, strideC] = [rowsA * lda + 5, repeatB ? 0 : rowsB * ldb + 2, m * ldc + 1];
  const a = bed.random(dtype, batch * strideA + 1);
  const b = bed.random(dtype, batch * strideB + rowsB * ldb + 1);
  const c = bed.put(outDtype, beta === 0 ? new Array(batch * strideC + 1).fill(NaN) : bed.values(batch * strideC + 1));
  const before = bed.get(outDtype, c, batch * strideC + 1);
  const args: GemmArgs = {
    dtype,
    outDtype,
    transA,
    transB,
    m,
    n,
    k,
    alpha,
    a: a.at,
    lda,
    strideA,
    b: b.at,
    ldb,
    strideB,
    beta,
    c,
    ldc,
    strideC,
    batch,
  };
  bed.kernels.gemm(args);
  const want = [...before];
  for (let z = 0; z < batch; z++) {
    for (let i = 0; i < m; i++) {
      for (let j = 0; j < n; j++) {
        const total = sum(k, (p) => {
          const x = pick(a.x, z * strideA + (transA ? p * lda + i : i * lda + p));
          return x * pick(b.x, z * strideB + (transB ? j * ldb + p : p * ldb + j));
        });
        const at = z * strideC + i * ldc + j;
        want[at] = fround(alpha) * total + (beta === 0 ? 0 : fround(beta) * pick(before, at));
      }
    }
  }
  const got = bed.get(outDtype, c, before.length);
  const what = `gemm ${dtype.name} ${outDtype.name} ${transA} ${transB} ${JSON.stringify(sizes)}`;
  close(got, want, outDtype === float32 ? 1e-6 : 2 ** -8 * 1.01, 3e-7 * Math.sqrt(k + 1), what);
}

const SIZES: readonly Case[] = [
  { m: 1, n: 1, k: 1 },
  { m: 4, n: 8, k: 16 },
  { m: 5, n: 9, k: 7 },
  { m: 1, n: 37, k: 50 },
  { m: 2, n: 5, k: 3 },
  { m: 3, n: 17, k: 65 },
  { m: 33, n: 1, k: 19 },
  { m: 7, n: 3, k: 1 },
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

for (const transA of [false, true]) {
  for (const transB of [false, true]) {
    test(`gemm() with transA ${transA}, transB ${transB} fits every size and dtype`, async () => {
      const bed = await Bed.open();
      for (const [dtype, outDtype] of TYPES) {
        for (const sizes of SIZES) check(bed, dtype, outDtype, transA, transB, sizes);
      }
    });
  }
}

test("gemm() crosses every block edge", async () => {
  const bed = await Bed.open();
  check(bed, float32, float32, false, true, { m: 131, n: 21, k: 259 });
  check(bed, float32, float32, true, false, { m: 21, n: 519, k: 33, beta: 1 });
  check(bed, bfloat16, bfloat16, false, false, { m: 1027, n: 9, k: 21 });
  check(bed, bfloat16, bfloat16, true, true, { m: 19, n: 517, k: 261, beta: 0.5 });
});

test("gemm() gives an element the same bits whatever the other sizes and the alignment", async () => {
  const bed = await Bed.open();
  const [m, n, k] = [37, 45, 300];
  const a = bed.random(float32, m * k);
  const b = bed.random(float32, k * n);
  const product = (rows: number, cols: number, from: { at: typeof a.at }): number[] => {
    const c = bed.room(float32, rows * cols);
    bed.kernels.gemm({
      dtype: float32,
      outDtype: float32,
      transA: false,
      transB: false,
      m: rows,
      n: cols,
      k,
      alpha: 1,
      a: from.at,
      lda: k,
      strideA: 0,
      b: b.at,
      ldb: n,
      strideB: 0,
      beta: 0,
      c,
      ldc: cols,
      strideC: 0,
      batch: 1,
    });
    return bed.get(float32, c, rows * cols);
  };
  const whole = product(m, n, a);
  const part = product(10, 11, { at: bed.put(float32, a.x) });
  part.forEach((v, at) => assert.equal(v, whole[Math.floor(at / 11) * n + at % 11]));
});

test("gemm() passes NaN and infinities on and ignores c when beta is 0", async () => {
  const bed = await Bed.open();
  const one = (a: number, b: number, beta: number, c: number, m: number, transB: boolean): number[] => {
    const at = bed.put(float32, new Array(m).fill(c));
    bed.kernels.gemm({
      dtype: float32,
      outDtype: float32,
      transA: false,
      transB,
      m,
      n: 1,
      k: 2,
      alpha: 1,
      a: bed.put(float32, new Array(2 * m).fill(a)),
      lda: 2,
      strideA: 0,
      b: bed.put(float32, [b, 1]),
      ldb: transB ? 2 : 1,
      strideB: 0,
      beta,
      c: at,
      ldc: 1,
      strideC: 0,
      batch: 1,
    });
    return bed.get(float32, at, m);
  };
  for (const m of [1, 6]) {
    for (const transB of [false, true]) {
      assert.ok(one(NaN, 1, 0, 0, m, transB).every(Number.isNaN));
      assert.ok(one(0, Infinity, 0, 0, m, transB).every(Number.isNaN));
      assert.ok(one(1, Infinity, 0, NaN, m, transB).every((v) => v === Infinity));
      assert.ok(one(1, 1, 1, NaN, m, transB).every(Number.isNaN));
      assert.ok(one(1, 1, 0, NaN, m, transB).every((v) => v === 2));
    }
  }
});

test("gemm() in the relaxed module agrees too", async () => {
  const bed = await Bed.open("relaxed");
  for (const sizes of SIZES) check(bed, float32, float32, false, true, sizes);
  check(bed, bfloat16, bfloat16, true, false, { m: 19, n: 517, k: 261, beta: 0.5 });
});

test("gemm() refuses a bfloat16 product of float32 factors", async () => {
  const bed = await Bed.open();
  assert.throws(() => check(bed, float32, bfloat16, false, false, { m: 1, n: 1, k: 1 }), DTypeError);
});
