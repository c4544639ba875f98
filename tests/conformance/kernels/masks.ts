/**
 * Comparisons, choices by a mask or by an index, and running sums against plain loops.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, DTYPES, float16, float32, int32, uint8 } from "../../../src/dtype.ts";
import { type CompareOp, OPS } from "../../../src/device/kernels/signature.ts";
import {
  type Cases,
  type CasesOf,
  each,
  eachFloat,
  FLOATS,
  pick,
  places,
  type Properties,
  toBfloat16,
} from "./case.ts";

const COMPARE: Record<CompareOp, (x: number, y: number) => boolean> = {
  eq: (x, y) => x === y,
  ne: (x, y) => x !== y,
  lt: (x, y) => x < y,
  le: (x, y) => x <= y,
  gt: (x, y) => x > y,
  ge: (x, y) => x >= y,
  logicalAnd: (x, y) => x !== 0 && y !== 0,
  logicalOr: (x, y) => x !== 0 || y !== 0,
};

const PAIRS: readonly { shape: number[]; aStrides: number[]; bStrides: number[] }[] = [
  { shape: [], aStrides: [], bStrides: [] },
  { shape: [7], aStrides: [1], bStrides: [0] },
  { shape: [3, 5], aStrides: [5, 1], bStrides: [1, 3] },
  { shape: [2, 3, 4], aStrides: [12, 4, 1], bStrides: [0, 1, 0] },
  { shape: [2, 0], aStrides: [1, 1], bStrides: [1, 1] },
];

const compare: CasesOf<"compare"> = [float32, bfloat16, float16, int32, uint8].flatMap((dtype) =>
  OPS.compareOp.flatMap((op) =>
    PAIRS.map(({ shape, aStrides, bStrides }) => ({
      args: { dtype, op, shape, aStrides, bStrides },
      // So few values that some are equal and some are 0.
      arrays: {
        a: places(shape, aStrides).length === 0 ? [] : each(Math.max(...places(shape, aStrides)) + 1, (i) => i * 7 % 3),
        b: places(shape, bStrides).length === 0 ? [] : each(Math.max(...places(shape, bStrides)) + 1, (i) => i * 5 % 4),
      },
      expect: (before) => {
        const [a, b, at] = [before("a"), before("b"), places(shape, bStrides)];
        const values = places(shape, aStrides).map((place, i) =>
          Number(COMPARE[op](pick(a, place), pick(b, pick(at, i))))
        );
        return { dst: { values } };
      },
    }))
  )
);

const CHOICES = [
  { shape: [], conditionStrides: [], aStrides: [], bStrides: [] },
  { shape: [9], conditionStrides: [1], aStrides: [1], bStrides: [0] },
  { shape: [3, 5], conditionStrides: [5, 1], aStrides: [1, 3], bStrides: [5, 1] },
  { shape: [2, 3, 4], conditionStrides: [0, 4, 1], aStrides: [12, 4, 1], bStrides: [0, 0, 1] },
];
const select: CasesOf<"select"> = DTYPES.flatMap((dtype) =>
  CHOICES.map(({ shape, conditionStrides, aStrides, bStrides }) => ({
    args: { dtype, shape, conditionStrides, aStrides, bStrides },
    arrays: {
      condition: each(Math.max(...places(shape, conditionStrides)) + 1, (i) => i % 3),
      a: { low: 0, high: 200 },
      b: { low: 0, high: 200 },
    },
    expect: (before) => {
      const [condition, a, b] = [before("condition"), before("a"), before("b")];
      const [atA, atB] = [places(shape, aStrides), places(shape, bStrides)];
      const values = places(shape, conditionStrides).map((place, i) =>
        pick(condition, place) !== 0 ? pick(a, pick(atA, i)) : pick(b, pick(atB, i))
      );
      return { dst: { values } };
    },
  }))
);

/** Sizes and strides of an index, and what it holds, out of range never. */
const INDICES = [
  { outer: 1, n: 4, m: 3, inner: 1, strideOuter: 3, stride: 1, strideInner: 1, index: [3, 0, 3] },
  { outer: 2, n: 3, m: 2, inner: 2, strideOuter: 4, stride: 2, strideInner: 1, index: [0, 1, 2, 0, 1, 1, 1, 2] },
  // One index for whole slices.
  { outer: 2, n: 3, m: 4, inner: 5, strideOuter: 0, stride: 1, strideInner: 0, index: [2, 0, 2, 1] },
  { outer: 3, n: 2, m: 3, inner: 1, strideOuter: 0, stride: 2, strideInner: 0, index: [1, 9, 0, 9, 1] },
];

/** Places in [outer, m, inner] with those in [outer, n, inner] that they point to. */
function pointers({ outer, n, m, inner, strideOuter, stride, strideInner, index }: typeof INDICES[number]): number[] {
  return each(outer * m * inner, (at) => {
    const [o, j, k] = [Math.floor(at / (m * inner)), Math.floor(at / inner) % m, at % inner];
    return (o * n + pick(index, o * strideOuter + j * stride + k * strideInner)) * inner + k;
  });
}

const gather: CasesOf<"gather"> = DTYPES.flatMap((dtype) =>
  INDICES.map(({ index, ...sizes }) => ({
    args: { dtype, ...sizes },
    arrays: { index, src: { low: 0, high: 200 } },
    expect: (before) => {
      const src = before("src");
      return { dst: { values: pointers({ index, ...sizes }).map((at) => pick(src, at)) } };
    },
  }))
);

const scatterAdd: CasesOf<"scatterAdd"> = eachFloat((dtype) =>
  INDICES.map(({ index, ...sizes }) => ({
    args: { dtype, ...sizes },
    arrays: { index },
    expect: (before) => {
      const [values, src] = [before("dst"), before("src")];
      pointers({ index, ...sizes }).forEach((at, i) => {
        values[at] = Math.fround(pick(values, at) + pick(src, i));
      });
      return { dst: { values } };
    },
  }))
);

const cumsum: CasesOf<"cumsum"> = eachFloat((dtype, epsilon) =>
  [false, true].flatMap((reverse) =>
    [1, 2, 5, 33].map((cols) => ({
      args: { dtype, rows: 3, cols, reverse },
      expect: (before) => {
        const src = before("src");
        const values = each(3 * cols, (at) => {
          const [row, col] = [at - at % cols, at % cols];
          const part = reverse ? src.slice(at, row + cols) : src.slice(row, row + col + 1);
          return part.reduce((total, value) => total + value, 0);
        });
        return { dst: { values, relative: epsilon * 1.01, absolute: 1e-12 } };
      },
    }))
  )
);

/** Cases of kernels of masks and indices. */
export const MASK_CASES: Cases<"compare" | "select" | "gather" | "scatterAdd" | "cumsum"> = {
  compare,
  select,
  gather,
  scatterAdd,
  cumsum,
};

/** Further tests of masks. */
export const MASK_PROPERTIES: Properties = {
  "compare() holds for NaN only that it is unequal, and takes it as true": (bed) => {
    const [a, b, dst] = [bed.put(float32, [NaN, NaN]), bed.put(float32, [NaN, 1]), bed.room(uint8, 2)];
    for (const op of OPS.compareOp) {
      bed.device.kernels.compare({ dtype: float32, op, shape: [2], aStrides: [1], bStrides: [1], dst, a, b });
      const isTrue = op === "ne" || op.startsWith("logical") ? 1 : 0;
      assert.deepEqual(bed.get(uint8, dst, 2), [isTrue, isTrue], op);
    }
  },
  "gather() and scatterAdd() leave out what is out of range and note the first": (bed) => {
    const sizes = { outer: 1, n: 3, m: 4, inner: 2 };
    for (const { dtype } of FLOATS) {
      const w = bed.values(8).map(toBfloat16);
      const src = bed.put(dtype, w);
      for (
        const [strides, index] of [
          [{ strideOuter: 0, stride: 1, strideInner: 0 }, [1, 3, 2, -1]],
          [{ strideOuter: 8, stride: 2, strideInner: 1 }, [1, 1, 3, 3, 2, 2, -1, -1]],
        ] as const
      ) {
        const args = { dtype, ...sizes, ...strides, index: bed.put(int32, index) };
        const dst = bed.room(dtype, 8);
        bed.device.kernels.gather({ ...args, dst, src });
        assert.deepEqual(bed.get(dtype, dst, 8), [pick(w, 2), pick(w, 3), 0, 0, pick(w, 4), pick(w, 5), 0, 0]);
        const fault = { kind: 5, place: 2, value: 3, limit: 3 };
        assert.deepEqual(bed.device.status.read(), fault);
        bed.device.status.clear();
        const sum = bed.put(float32, [0, 0, 0, 0, 0, 0]);
        bed.device.kernels.scatterAdd({ ...args, dst: sum, src });
        assert.deepEqual(bed.get(float32, sum, 6), [0, 0, pick(w, 0), pick(w, 1), pick(w, 4), pick(w, 5)]);
        assert.deepEqual(bed.device.status.read(), fault);
        bed.device.status.clear();
      }
    }
  },
};
