/**
 * Kernels on arrays against loops in float64.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, type DType, DTYPES, float16, float32, int32, uint8 } from "../../../src/dtype.ts";
import type { ARRAY_KERNELS } from "../../../src/device/kernels/arrays.ts";
import { type BinaryOp, OPS, type UnaryOp } from "../../../src/device/kernels/signature.ts";
import type { Bed } from "./bed.ts";
import {
  byRow,
  type Cases,
  type CasesOf,
  close,
  each,
  eachFloat,
  FLOATS,
  fround,
  pick,
  places,
  type Properties,
  toBfloat16,
} from "./case.ts";
import type { MASK_CASES } from "./masks.ts";

/** Abramowitz and Stegun 7.1.5 and a continued fraction: erf to about 1e-15. */
function erf(x: number): number {
  const z = Math.abs(x);
  if (z > 6) return Math.sign(x);
  if (z < 2.5) {
    let term = z;
    let total = z;
    for (let n = 1; n < 80; n++) {
      term *= -z * z / n;
      total += term / (2 * n + 1);
    }
    return Math.sign(x) * total * 2 / Math.sqrt(Math.PI);
  }
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / 2 / (z + fraction);
  return Math.sign(x) * (1 - Math.exp(-z * z) / Math.sqrt(Math.PI) / (z + fraction));
}

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
const cdf = (x: number): number => (1 + erf(x / Math.SQRT2)) / 2;
const GELU = Math.sqrt(2 / Math.PI);

const UNARY: Record<UnaryOp, (x: number, p0: number, p1: number) => number> = {
  neg: (x) => -x,
  exp: Math.exp,
  log: Math.log,
  sqrt: Math.sqrt,
  rsqrt: (x) => 1 / Math.sqrt(x),
  tanh: Math.tanh,
  sigmoid,
  silu: (x) => x * sigmoid(x),
  gelu: (x) => x * cdf(x),
  geluTanh: (x) => 0.5 * x * (1 + Math.tanh(GELU * (x + 0.044715 * x ** 3))),
  relu: (x) => Math.max(x, 0),
  square: (x) => x * x,
  abs: Math.abs,
  reciprocal: (x) => 1 / x,
  sin: Math.sin,
  cos: Math.cos,
  addScalar: (x, p0) => x + p0,
  mulScalar: (x, p0) => x * p0,
  clamp: (x, p0, p1) => Math.min(Math.max(x, p0), p1),
  powScalar: (x, p0) => x ** p0,
  softplus: (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x))),
};
const POSITIVE: readonly UnaryOp[] = ["log", "sqrt", "rsqrt", "powScalar"];

const BINARY: Record<BinaryOp, (x: number, y: number) => number> = {
  add: (x, y) => x + y,
  sub: (x, y) => x - y,
  mul: (x, y) => x * y,
  div: (x, y) => x / y,
  maximum: Math.max,
  minimum: Math.min,
  pow: (x, y) => x ** y,
};

const parameters = (op: UnaryOp): { p0: number; p1: number } =>
  op === "clamp" ? { p0: -0.5, p1: 0.75 } : { p0: 1.25, p1: 0 };

const fill: CasesOf<"fill"> = DTYPES.flatMap((dtype) =>
  [[0, 7.75], [1, 7.75], [3, 7.75], [17, 7.75], [1, 3]].map(([n = 0, value = 0]) => ({
    args: { dtype, n, value },
    expect: () => ({ dst: { values: new Array<number>(n).fill(dtype.kind === "float" ? value : Math.trunc(value)) } }),
  }))
);

const clamped = (low: number, high: number) => (x: number): number => Math.min(Math.max(Math.trunc(x), low), high);
/** A value as it is stored in each dtype that `cast` knows. */
const STORED: ReadonlyMap<DType, (x: number) => number> = new Map([
  [float32, fround],
  [bfloat16, (x) => toBfloat16(fround(x))],
  [float16, (x) => Math.f16round(fround(x))],
  [int32, clamped(-(2 ** 31), 2 ** 31 - 1)],
  [uint8, (x) => clamped(-(2 ** 31), 2 ** 31 - 1)(x) & 255],
]);
const cast: CasesOf<"cast"> = [...STORED].flatMap(([dstDtype, stored]) =>
  [...STORED.keys()].map((srcDtype) => ({
    args: { dstDtype, srcDtype, n: 999 },
    arrays: { src: { low: srcDtype === uint8 ? 0 : -1000, high: srcDtype === uint8 ? 256 : 1000 } },
    expect: (before) => ({ dst: { values: before("src").map((value) => stored(value) + 0) } }),
  }))
);

/** The array that a strided copy leaves: `undefined` in the gaps. */
function scattered(at: readonly number[], values: readonly number[]): (number | undefined)[] {
  const dst = new Array<number | undefined>(at.length === 0 ? 0 : Math.max(...at) + 1).fill(undefined);
  at.forEach((place, i) => dst[place] = values[i]);
  return dst;
}

const COPIES: readonly { shape: number[]; dstStrides: number[]; srcStrides: number[] }[] = [
  { shape: [3, 5, 2], dstStrides: [10, 2, 1], srcStrides: [5, 1, 15] },
  { shape: [4, 3], dstStrides: [3, 1], srcStrides: [0, 1] },
  { shape: [2, 3], dstStrides: [1, 4], srcStrides: [3, 1] },
  { shape: [2, 3, 4], dstStrides: [20, 5, 1], srcStrides: [12, 4, 1] },
  { shape: [], dstStrides: [], srcStrides: [] },
  { shape: [0, 3], dstStrides: [3, 1], srcStrides: [0, 1] },
  { shape: [2, 1, 2, 1, 2, 1, 2, 3], dstStrides: [24, 0, 12, 7, 6, 6, 3, 1], srcStrides: [3, 9, 6, 1, 12, 5, 24, 1] },
];
const copyStrided: CasesOf<"copyStrided"> = DTYPES.flatMap((dtype) =>
  COPIES.map(({ shape, dstStrides, srcStrides }) => ({
    args: { dtype, shape, dstStrides, srcStrides },
    arrays: { src: { low: 0, high: 200 } },
    expect: (before) => {
      const source = before("src");
      const values = places(shape, srcStrides).map((place) => pick(source, place));
      return { dst: { values: scattered(places(shape, dstStrides), values) } };
    },
  }))
);

const unary: CasesOf<"unary"> = eachFloat((dtype, epsilon) =>
  OPS.unaryOp.flatMap((op) =>
    [0, 1, 2, 3, 5, 203].map((n) => {
      const { p0, p1 } = parameters(op);
      const high = n === 203 ? 8 : 2;
      // Four roundings of room; GELU's subtract 1 from nearly 1 for very negative x.
      const absolute = op.startsWith("gelu") || op === "sin" || op === "cos" ? 2e-7 : 1e-30;
      return {
        args: { dtype, op, n, p0, p1 },
        arrays: { src: { low: POSITIVE.includes(op) ? 1e-3 : -high, high } },
        expect: (before) => {
          const values = before("src").map((v) => UNARY[op](v, p0, p1));
          return { dst: { values, relative: epsilon + 4e-7, absolute } };
        },
      };
    })
  )
);

const unaryBackward: CasesOf<"unaryBackward"> = eachFloat((dtype, epsilon) =>
  OPS.unaryOp.map((op) => {
    const { p0, p1 } = parameters(op);
    return {
      args: { dtype, op, n: 103, p0, p1 },
      arrays: { x: { low: POSITIVE.includes(op) || op === "reciprocal" ? 0.1 : -4, high: 4 } },
      expect: (before) => {
        const dy = before("dy");
        const values = before("x").map((v, i) => {
          const h = 1e-4 * Math.max(0.1, Math.abs(v));
          const f = (u: number): number => UNARY[op](u, p0, p1);
          return (8 * (f(v + h) - f(v - h)) - (f(v + 2 * h) - f(v - 2 * h))) / (12 * h) * pick(dy, i);
        });
        return { dx: { values, relative: 2 * epsilon + 2e-6, absolute: 3e-7 } };
      },
    };
  })
);

const BROADCASTS: readonly { shape: number[]; aStrides: number[]; bStrides: number[] }[] = [
  { shape: [7], aStrides: [1], bStrides: [1] },
  { shape: [7], aStrides: [1], bStrides: [0] },
  { shape: [7], aStrides: [0], bStrides: [1] },
  { shape: [], aStrides: [], bStrides: [] },
  { shape: [3, 5], aStrides: [5, 1], bStrides: [5, 1] },
  { shape: [3, 5], aStrides: [5, 1], bStrides: [0, 1] },
  { shape: [3, 5], aStrides: [5, 1], bStrides: [1, 0] },
  { shape: [2, 1, 3, 1, 9], aStrides: [27, 27, 9, 9, 1], bStrides: [9, 0, 0, 0, 1] },
  { shape: [2, 2, 2, 2, 2, 2, 2, 3], aStrides: [192, 96, 48, 24, 12, 6, 3, 1], bStrides: [0, 1, 0, 1, 0, 1, 0, 0] },
  { shape: [3, 0, 2], aStrides: [0, 2, 1], bStrides: [0, 2, 1] },
];
/** One operand is transposed: dense in its bytes, yet not in its order, so nothing may be written over it. */
const TRANSPOSED = { shape: [3, 5], aStrides: [1, 4], bStrides: [5, 1] };
const binary: CasesOf<"binary"> = eachFloat((dtype, epsilon) =>
  OPS.binaryOp.flatMap((op) =>
    [...BROADCASTS, TRANSPOSED].map(({ shape, aStrides, bStrides }) => ({
      args: { dtype, op, shape, aStrides, bStrides },
      arrays: { a: { low: 0.5, high: 2 }, b: { low: 0.5, high: 2 } },
      expect: (before) => {
        const [a, b, at] = [before("a"), before("b"), places(shape, bStrides)];
        const values = places(shape, aStrides).map((place, i) => BINARY[op](pick(a, place), pick(b, pick(at, i))));
        return { dst: { values, relative: epsilon * 1.01 } };
      },
    }))
  )
);

const accumulate: CasesOf<"accumulate"> = eachFloat((dstDtype, epsilon) =>
  FLOATS.map(({ dtype: srcDtype }) => ({
    args: { dstDtype, srcDtype, n: 29 },
    expect: (before) => {
      const src = before("src");
      return { dst: { values: before("dst").map((v, i) => v + pick(src, i)), relative: epsilon * 1.01 } };
    },
  }))
);

const scale: CasesOf<"scale"> = eachFloat((dtype, epsilon) => [{
  args: { dtype, n: 29, factor: 0.3 },
  expect: (before) => ({
    dst: { values: before("src").map((v) => v * fround(0.3)), relative: epsilon * 1.01 },
  }),
}]);

const scaleBy: CasesOf<"scaleBy"> = eachFloat((dtype, epsilon) =>
  [-3.5, 1, 0].map((factor) => ({
    args: { dtype, n: 29 },
    arrays: { factor: [factor] },
    expect: (before) => ({ dst: { values: before("src").map((v) => v * factor), relative: epsilon * 1.01 } }),
  }))
);

const maxAbs: CasesOf<"maxAbs"> = eachFloat((dtype) => [
  ...[0, 1, 3, 4, 7, 64].map((n) => ({
    args: { dtype, n },
    expect: (before: (name: "src") => number[]) => ({ dst: { values: [Math.max(0, ...before("src").map(Math.abs))] } }),
  })),
  ...[0, 4, 6].map((place) => ({
    label: "NaN",
    args: { dtype, n: 7 },
    arrays: { src: each(7, (i) => i === place ? NaN : i) },
    expect: () => ({ dst: { values: [NaN] } }),
  })),
]);

const reduce: CasesOf<"reduce"> = eachFloat((dtype, epsilon) => [
  {
    args: { dtype, op: "sum", outer: 1, n: 0, inner: 1 },
    expect: () => ({ dst: { values: [0] } }),
  },
  ...OPS.reduceOp.flatMap((op) => [
    ...[[1, 1, 1], [3, 7, 1], [2, 129, 1], [1, 4, 5], [2, 9, 70], [2, 3, 4]].map(([outer = 1, n = 1, inner = 1]) => ({
      args: { dtype, op, outer, n, inner },
      expect: (before: (name: "src") => number[]) => {
        const x = before("src");
        const values = each(outer * inner, (r) => {
          const column = each(n, (i) => pick(x, (Math.floor(r / inner) * n + i) * inner + r % inner));
          if (op === "max") return Math.max(...column);
          if (op === "min") return Math.min(...column);
          return column.reduce((a, b) => a + b, 0) / (op === "mean" ? n : 1);
        });
        return { dst: { values, relative: epsilon * 1.01, absolute: 1e-12 } };
      },
    })),
    ...[0, 3, 4, 6].map((place) => ({
      label: "NaN",
      args: { dtype, op, outer: 1, n: 7, inner: 1 },
      arrays: { src: each(7, (i) => i === place ? NaN : i) },
      expect: () => ({ dst: { values: [NaN] } }),
    })),
  ]),
]);

const ROWS = [[1, 3, 3, 2, 0], [-5, -4, -6, -4, -9], [0, NaN, 9, NaN, 1], [-Infinity, -Infinity, -Infinity, 0, 0]];
const argmax: CasesOf<"argmax"> = eachFloat((dtype) => [
  {
    args: { dtype, rows: 4, cols: 5 },
    arrays: { src: ROWS.flat() },
    expect: () => ({ dst: { values: [1, 1, 1, 3] } }),
  },
  {
    args: { dtype, rows: 7, cols: 33 },
    expect: (before) => ({
      dst: { values: byRow(before("src"), 33, (row) => [row.indexOf(Math.max(...row))]) },
    }),
  },
]);

/** Cases of kernels on arrays. */
export const ARRAY_CASES: Cases<Exclude<keyof typeof ARRAY_KERNELS, keyof typeof MASK_CASES>> = {
  fill,
  cast,
  copyStrided,
  unary,
  unaryBackward,
  binary,
  accumulate,
  scale,
  scaleBy,
  maxAbs,
  reduce,
  argmax,
};

function applyUnary(bed: Bed, op: UnaryOp, values: readonly number[], p0 = -1, p1 = 1): number[] {
  const at = bed.put(float32, values);
  bed.device.kernels.unary({ dtype: float32, op, n: values.length, p0, p1, dst: at, src: at });
  return bed.get(float32, at, values.length);
}

/** Further tests of kernels on arrays. */
export const ARRAY_PROPERTIES: Properties = {
  "fill() rounds integers towards zero": (bed) => {
    const dst = bed.room(int32, 1);
    bed.device.kernels.fill({ dtype: int32, n: 1, value: -3.9, dst });
    assert.deepEqual(bed.get(int32, dst, 1), [-3]);
  },
  "cast() rounds floats to nearest even and keeps NaN, widens exactly, ends int32 at its range, and wraps uint8": (
    bed,
  ) => {
    const half = 2 ** -8;
    const values = [
      0,
      -0,
      1,
      1 + half,
      1 + 3 * half,
      1 + half + 2 ** -20,
      3.4e38,
      -3.4e38,
      Infinity,
      -Infinity,
      NaN,
      1e-40,
    ];
    const n = values.length;
    const [src, narrow, back] = [bed.put(float32, values), bed.room(bfloat16, n), bed.room(float32, n)];
    bed.device.kernels.cast({ dstDtype: bfloat16, srcDtype: float32, n, dst: narrow, src });
    bed.device.kernels.cast({ dstDtype: float32, srcDtype: bfloat16, n, dst: back, src: narrow });
    const want = values.map((value) => toBfloat16(fround(value)));
    for (const got of [bed.get(bfloat16, narrow, n), bed.get(float32, back, n)]) {
      got.forEach((v, i) => assert.ok(Object.is(v, pick(want, i)), `cast of ${values[i]}`));
    }
    assert.deepEqual(want.slice(2, 6), [1, 1, 1 + 4 * half, 1 + 2 * half]);
    // A NaN whose payload lies in the lower half stays a NaN.
    bed.device.copyIn(src, new Uint8Array(Uint32Array.of(0x7f800001).buffer));
    bed.device.kernels.cast({ dstDtype: bfloat16, srcDtype: float32, n: 1, dst: narrow, src });
    assert.deepEqual(bed.get(bfloat16, narrow, 1), [NaN]);
    const ints = bed.put(int32, [0, -7, 16777217, 2147483647]);
    bed.device.kernels.cast({ dstDtype: float32, srcDtype: int32, n: 4, dst: back, src: ints });
    assert.deepEqual(bed.get(float32, back, 4), [0, -7, 16777216, 2147483648]);
    const floats = [NaN, Infinity, -Infinity, 3e9, -1.9, 1.9, 255.9, 256];
    const [from, to] = [bed.put(float32, floats), { int32: bed.room(int32, 8), uint8: bed.room(uint8, 8) }];
    bed.device.kernels.cast({ dstDtype: int32, srcDtype: float32, n: 8, dst: to.int32, src: from });
    bed.device.kernels.cast({ dstDtype: uint8, srcDtype: float32, n: 8, dst: to.uint8, src: from });
    assert.deepEqual(bed.get(int32, to.int32, 8), [0, 2147483647, -2147483648, 2147483647, -1, 1, 255, 256]);
    assert.deepEqual(bed.get(uint8, to.uint8, 8), [0, 255, 0, 255, 255, 1, 255, 0]);
    const wide = bed.put(int32, [0, 255, 256, 300, -1, -129, 2147483647, -2147483648]);
    bed.device.kernels.cast({ dstDtype: uint8, srcDtype: int32, n: 8, dst: to.uint8, src: wide });
    assert.deepEqual(bed.get(uint8, to.uint8, 8), [0, 255, 0, 44, 255, 127, 255, 0]);
  },
  "unary() keeps NaN, infinities and the ends of the range": (bed) => {
    const run = (op: UnaryOp, values: readonly number[]): number[] => applyUnary(bed, op, values);
    for (const op of OPS.unaryOp) assert.deepEqual(run(op, [NaN]), [NaN], `${op} of NaN`);
    assert.deepEqual(run("exp", [-Infinity, Infinity, 0, -200, 200]), [0, Infinity, 1, 0, Infinity]);
    const ends = [88.7, -87, -100, -103];
    close(run("exp", ends), ends.map((v) => Math.exp(fround(v))), 2e-7, 1.5e-45, "exp");
    assert.deepEqual(run("sigmoid", [-Infinity, Infinity, -200, 200]), [0, 1, 0, 1]);
    assert.deepEqual(run("tanh", [-Infinity, Infinity, 50, 0]), [-1, 1, 1, 0]);
    assert.deepEqual(run("log", [0, Infinity, 1, -1]), [-Infinity, Infinity, 0, NaN]);
    assert.deepEqual(run("relu", [-Infinity, Infinity, -1, 2]), [0, Infinity, 0, 2]);
    assert.deepEqual(run("clamp", [-Infinity, Infinity, 0.5]), [-1, 1, 0.5]);
    assert.deepEqual(run("gelu", [Infinity, 20, -20]), [Infinity, 20, -0]);
    assert.deepEqual(run("softplus", [-Infinity, Infinity, -200, 200]), [0, Infinity, 0, 200]);
    assert.deepEqual(run("powScalar", [0, Infinity, -2]), [Infinity, 0, -0.5]);
  },
  "exp() is within 2 units of the last place over its whole range": (bed) => {
    const x = bed.values(100_000, -87, 88.7).map(fround);
    close(applyUnary(bed, "exp", x), x.map(Math.exp), 2 * 2 ** -23, 0, "exp");
  },
  "unaryBackward() takes one side at the kinks": (bed) => {
    const run = (op: UnaryOp, values: readonly number[], p0: number = -1, p1: number = 1): number[] => {
      const n = values.length;
      const [x, dy, dx] = [bed.put(float32, values), bed.put(float32, values.map(() => 3)), bed.room(float32, n)];
      bed.device.kernels.unaryBackward({ dtype: float32, op, n, p0, p1, dx, dy, x });
      return bed.get(float32, dx, n);
    };
    assert.deepEqual([run("relu", [0, -1, 1]), run("abs", [0, -2, 2])], [[0, 0, 3], [0, -3, 3]]);
    assert.deepEqual(run("clamp", [-1, 1, -1.5, 1.5, 0, NaN]), [0, 0, 0, 0, 3, 0]);
    const clamp = (p0: number, p1: number): number[] => run("clamp", [-Infinity, -1, 0, 1, Infinity], p0, p1);
    const clamps = [clamp(-1, Infinity), clamp(-Infinity, 1), clamp(-Infinity, Infinity), clamp(Infinity, Infinity)];
    assert.deepEqual(clamps, [[0, 0, 3, 3, 3], [3, 3, 3, 0, 0], [3, 3, 3, 3, 3], [0, 0, 0, 0, 0]]);
    assert.deepEqual(run("powScalar", [0, 2], 0, 0), [0, 0], "the power 0 is constant");
  },
  "binary() hides no NaN": (bed) => {
    // 1 to any power is 1.
    for (const op of OPS.binaryOp.filter((name) => name !== "pow")) {
      const [a, b, dst] = [bed.put(float32, [NaN, 1]), bed.put(float32, [1, NaN]), bed.room(float32, 2)];
      bed.device.kernels.binary({ dtype: float32, op, shape: [2], aStrides: [1], bStrides: [1], dst, a, b });
      assert.deepEqual(bed.get(float32, dst, 2), [NaN, NaN], op);
    }
  },
};
