/**
 * Kernels on arrays against loops in float64: filling, casts, strided copies, element-wise functions and reductions.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { bfloat16, DTYPES, float32, float64, int32, int64, uint8 } from "../../src/dtype.ts";
import { DTypeError, InternalError } from "../../src/errors.ts";
import { BINARY_OPS, REDUCE_OPS, UNARY_OPS } from "../../src/device/kernels.ts";
import type { BinaryOp, UnaryOp } from "../../src/device/kernels.ts";
import { Bed, close, FLOATS, pick } from "./kernels_bed.ts";

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
};
const POSITIVE: readonly UnaryOp[] = ["log", "sqrt", "rsqrt"];

const BINARY: Record<BinaryOp, (x: number, y: number) => number> = {
  add: (x, y) => x + y,
  sub: (x, y) => x - y,
  mul: (x, y) => x * y,
  div: (x, y) => x / y,
  maximum: Math.max,
  minimum: Math.min,
};

test("fill() writes every dtype and nothing beside it", async () => {
  const bed = await Bed.open();
  for (const dtype of DTYPES) {
    for (const n of [0, 1, 3, 17]) {
      const at = bed.room(dtype, n + 1);
      bed.kernels.fill(dtype, at, n, 7.75);
      const view = new DataView(bed.memory.buffer, at, (n + 1) * dtype.byteLength);
      for (let i = 0; i < n; i++) {
        if (dtype === float32) assert.equal(view.getFloat32(4 * i, true), 7.75);
        if (dtype === bfloat16) assert.equal(view.getUint16(2 * i, true), 0x40f8);
        if (dtype === int32) assert.equal(view.getInt32(4 * i, true), 7);
        if (dtype === uint8) assert.equal(view.getUint8(i), 7);
        if (dtype === int64) assert.equal(view.getBigInt64(8 * i, true), 7n);
        if (dtype === float64) assert.equal(view.getFloat64(8 * i, true), 7.75);
      }
      assert.equal(view.getUint8(n * dtype.byteLength), 0xff, `fill ${dtype.name} wrote past ${n}`);
    }
  }
  const negative = bed.room(int32, 1);
  bed.kernels.fill(int32, negative, 1, -3.9);
  assert.deepEqual(bed.get(int32, negative, 1), [-3]);
});

test("cast() rounds to nearest even, keeps NaN and infinities, and widens exactly", async () => {
  const bed = await Bed.open();
  const special = [
    0,
    -0,
    1,
    1 + 2 ** -8,
    1 + 3 * 2 ** -8,
    1 + 2 ** -8 + 2 ** -20,
    3.4e38,
    -3.4e38,
    Infinity,
    -Infinity,
    NaN,
    1e-40,
  ];
  const values = [...special, ...bed.values(999, -1e3, 1e3)];
  const src = bed.put(float32, values);
  const dst = bed.room(bfloat16, values.length);
  bed.kernels.cast(bfloat16, float32, dst, src, values.length);
  const expected = bed.put(bfloat16, values); // the bed's own rounding
  const back = bed.room(float32, values.length);
  bed.kernels.cast(float32, bfloat16, back, dst, values.length);
  const want = bed.get(bfloat16, expected, values.length);
  bed.get(bfloat16, dst, values.length).forEach((v, i) =>
    assert.ok(Object.is(v, pick(want, i)), `cast of ${values[i]}`)
  );
  bed.get(float32, back, values.length).forEach((v, i) => assert.ok(Object.is(v, pick(want, i))));
  assert.deepEqual(want.slice(2, 6), [1, 1, 1 + 4 * 2 ** -8, 1 + 2 ** -7]);

  // A NaN whose payload lies in the lower half stays a NaN.
  new Uint32Array(bed.memory.buffer, src, 1)[0] = 0x7f800001;
  bed.kernels.cast(bfloat16, float32, dst, src, 1);
  assert.ok(Number.isNaN(pick(bed.get(bfloat16, dst, 1), 0)));

  const ints = bed.put(int32, [0, -7, 16777217, 2147483647]);
  bed.kernels.cast(float32, int32, back, ints, 4);
  assert.deepEqual(bed.get(float32, back, 4), [0, -7, 16777216, 2147483648]);
  assert.throws(() => bed.kernels.cast(int32, float32, ints, back, 4), DTypeError);
});

test("copyStrided() transposes, broadcasts and scatters every element size", async () => {
  const bed = await Bed.open();
  for (const dtype of [float32, bfloat16, uint8, int32]) {
    const values = Array.from({ length: 2 * 3 * 5 }, (_, i) => i);
    const src = bed.put(dtype, values);
    const dst = bed.room(dtype, 30);
    bed.kernels.copyStrided(dtype, dst, [10, 2, 1], src, [5, 1, 15], [3, 5, 2]);
    const want = [];
    for (let i = 0; i < 3; i++) for (let j = 0; j < 5; j++) for (let k = 0; k < 2; k++) want.push(i * 5 + j + k * 15);
    assert.deepEqual(bed.get(dtype, dst, 30), want);
  }
  const row = bed.put(float32, [1, 2, 3]);
  const many = bed.room(float32, 12);
  bed.kernels.copyStrided(float32, many, [3, 1], row, [0, 1], [4, 3]);
  assert.deepEqual(bed.get(float32, many, 12), [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]);
  bed.kernels.copyStrided(float32, many, [1, 4], bed.put(float32, [1, 2, 3, 4, 5, 6]), [3, 1], [2, 3]);
  assert.deepEqual(bed.get(float32, many, 12), [1, 4, 3, 1, 2, 5, 1, 2, 3, 6, 2, 3]);
  bed.kernels.copyStrided(float32, many, [], row, [], []);
  assert.deepEqual(bed.get(float32, many, 2), [1, 4]);
  bed.kernels.copyStrided(float32, many, [3, 1], row, [0, 1], [0, 3]);
  assert.throws(() => bed.kernels.copyStrided(float32, many, [1], row, [1], [1, 1]), InternalError);
});

test("unary() agrees with float64 in both dtypes, at every length, in place too", async () => {
  const bed = await Bed.open();
  for (const { dtype, epsilon } of FLOATS) {
    for (const op of UNARY_OPS) {
      const [p0, p1] = op === "clamp" ? [-0.5, 0.75] : [1.25, 0];
      for (const n of [0, 1, 2, 3, 5, 203]) {
        const scale = n === 203 ? 8 : 2;
        const { at, x } = bed.random(dtype, n, POSITIVE.includes(op) ? 1e-3 : -scale, scale);
        const y = bed.room(dtype, n + 1);
        const before = bed.bytes(dtype, y, n + 1).slice(n * dtype.byteLength);
        bed.kernels.unary(op, dtype, y, at, n, p0, p1);
        const got = bed.get(dtype, y, n);
        // Four roundings of room; GELU's subtract 1 from nearly 1 for very negative x.
        const absolute = op.startsWith("gelu") || op === "sin" || op === "cos" ? 2e-7 : 1e-30;
        close(got, x.map((v) => UNARY[op](v, p0, p1)), epsilon + 4e-7, absolute, `${op} ${dtype.name} ${n}`);
        assert.deepEqual(bed.bytes(dtype, y, n + 1).slice(n * dtype.byteLength), before, `${op} wrote past ${n}`);
        bed.kernels.unary(op, dtype, at, at, n, p0, p1);
        assert.deepEqual(bed.get(dtype, at, n), got, `${op} in place`);
      }
    }
  }
});

test("unary() keeps NaN, infinities and the ends of the range", async () => {
  const bed = await Bed.open();
  const run = (op: UnaryOp, values: number[], p0 = -1, p1 = 1): number[] => {
    const at = bed.put(float32, values);
    bed.kernels.unary(op, float32, at, at, values.length, p0, p1);
    return bed.get(float32, at, values.length);
  };
  for (const op of UNARY_OPS) assert.ok(Number.isNaN(pick(run(op, [NaN]), 0)), `${op} of NaN`);
  assert.deepEqual(run("exp", [-Infinity, Infinity, 0, -200, 200]), [0, Infinity, 1, 0, Infinity]);
  close(
    run("exp", [88.7, -87, -100, -103]),
    [88.7, -87, -100, -103].map((v) => Math.exp(Math.fround(v))),
    2e-7,
    1.5e-45,
    "exp",
  );
  assert.deepEqual(run("sigmoid", [-Infinity, Infinity, -200, 200]), [0, 1, 0, 1]);
  assert.deepEqual(run("tanh", [-Infinity, Infinity, 50, 0]), [-1, 1, 1, 0]);
  assert.deepEqual(run("log", [0, Infinity, 1]), [-Infinity, Infinity, 0]);
  assert.ok(Number.isNaN(pick(run("log", [-1]), 0)));
  assert.deepEqual(run("relu", [-Infinity, Infinity, -1, 2]), [0, Infinity, 0, 2]);
  assert.deepEqual(run("clamp", [-Infinity, Infinity, 0.5]), [-1, 1, 0.5]);
  assert.deepEqual(run("gelu", [Infinity, 20, -20]), [Infinity, 20, -0]);
});

test("unary() and softmax() in the relaxed module hide no NaN", async () => {
  const bed = await Bed.open("relaxed");
  for (const op of UNARY_OPS) {
    const at = bed.put(float32, [NaN, 1, 2]);
    bed.kernels.unary(op, float32, at, at, 3, -1, 1);
    assert.ok(Number.isNaN(pick(bed.get(float32, at, 3), 0)), `${op} of NaN`);
  }
  const scores = bed.put(float32, [1, NaN, 2]);
  bed.kernels.softmax(float32, scores, scores, 1, 3);
  assert.ok(bed.get(float32, scores, 3).every(Number.isNaN));
});

test("exp() is within 2 ulp over its whole range", async () => {
  const bed = await Bed.open();
  const { at, x } = bed.random(float32, 100_000, -87, 88.7);
  bed.kernels.unary("exp", float32, at, at, x.length, 0, 0);
  close(bed.get(float32, at, x.length), x.map(Math.exp), 2 * 2 ** -23, 0, "exp");
});

test("unaryBackward() agrees with central differences", async () => {
  const bed = await Bed.open();
  for (const { dtype, epsilon } of FLOATS) {
    for (const op of UNARY_OPS) {
      const [p0, p1] = op === "clamp" ? [-0.5, 0.75] : [1.25, 0];
      const n = 103;
      const { at: xAt, x } = bed.random(dtype, n, POSITIVE.includes(op) || op === "reciprocal" ? 0.1 : -4, 4);
      const { at: dyAt, x: dy } = bed.random(dtype, n);
      const dx = bed.room(dtype, n);
      bed.kernels.unaryBackward(op, dtype, dx, dyAt, xAt, n, p0, p1);
      const want = x.map((v, i) => {
        const h = 1e-4 * Math.max(0.1, Math.abs(v));
        const f = (u: number): number => UNARY[op](u, p0, p1);
        const slope = (8 * (f(v + h) - f(v - h)) - (f(v + 2 * h) - f(v - 2 * h))) / (12 * h);
        return slope * pick(dy, i);
      });
      close(bed.get(dtype, dx, n), want, 2 * epsilon + 2e-6, 3e-7, `${op} ${dtype.name}`);
    }
  }
});

test("unaryBackward() takes one side at the kinks", async () => {
  const bed = await Bed.open();
  const run = (op: UnaryOp, x: number[]): number[] => {
    const dx = bed.room(float32, x.length);
    bed.kernels.unaryBackward(op, float32, dx, bed.put(float32, x.map(() => 3)), bed.put(float32, x), x.length, -1, 1);
    return bed.get(float32, dx, x.length);
  };
  assert.deepEqual(run("relu", [0, -1, 1]), [0, 0, 3]);
  assert.deepEqual(run("abs", [0, -2, 2]), [0, -3, 3]);
  assert.deepEqual(run("clamp", [-1, 1, -1.5, 1.5, 0]), [3, 3, 0, 0, 3]);
});

test("binary() broadcasts over any strides", async () => {
  const bed = await Bed.open();
  const cases: { shape: number[]; a: number[]; b: number[] }[] = [
    { shape: [7], a: [1], b: [1] },
    { shape: [7], a: [1], b: [0] },
    { shape: [7], a: [0], b: [1] },
    { shape: [], a: [], b: [] },
    { shape: [3, 5], a: [5, 1], b: [0, 1] },
    { shape: [3, 5], a: [5, 1], b: [1, 0] },
    { shape: [3, 5], a: [1, 3], b: [5, 1] }, // transposed
    { shape: [2, 1, 3, 1, 9], a: [27, 27, 9, 9, 1], b: [9, 0, 0, 0, 1] },
    { shape: [2, 2, 2, 2, 2, 2, 2, 3], a: [192, 96, 48, 24, 12, 6, 3, 1], b: [0, 1, 0, 1, 0, 1, 0, 0] },
    { shape: [3, 0, 2], a: [0, 2, 1], b: [0, 2, 1] },
  ];
  for (const { dtype, epsilon } of FLOATS) {
    const { at: aAt, x: a } = bed.random(dtype, 400, 0.5, 2);
    const { at: bAt, x: b } = bed.random(dtype, 400, 0.5, 2);
    for (const op of BINARY_OPS) {
      for (const { shape, a: aStrides, b: bStrides } of cases) {
        const total = shape.reduce((x, y) => x * y, 1);
        const want = Array.from({ length: total }, (_, flat) => {
          let [rest, i, j] = [flat, 0, 0];
          for (let d = shape.length - 1; d >= 0; d--) {
            const index = rest % pick(shape, d);
            rest = Math.floor(rest / pick(shape, d));
            i += index * pick(aStrides, d);
            j += index * pick(bStrides, d);
          }
          return BINARY[op](pick(a, i), pick(b, j));
        });
        const dst = bed.room(dtype, total);
        bed.kernels.binary(op, dtype, dst, aAt, aStrides, bAt, bStrides, shape);
        close(bed.get(dtype, dst, total), want, epsilon * 1.01, 0, `${op} ${dtype.name} [${shape.join()}]`);
      }
    }
  }
  for (const op of ["maximum", "minimum"] as const) {
    const dst = bed.room(float32, 2);
    bed.kernels.binary(op, float32, dst, bed.put(float32, [NaN, 1]), [1], bed.put(float32, [1, NaN]), [1], [2]);
    assert.ok(bed.get(float32, dst, 2).every(Number.isNaN), `${op} hides a NaN`);
  }
});

test("accumulate(), scale() and scaleBy() work in place and across dtypes", async () => {
  const bed = await Bed.open();
  for (const to of FLOATS) {
    for (const from of FLOATS) {
      const { at: dst, x } = bed.random(to.dtype, 29);
      const { at: src, x: y } = bed.random(from.dtype, 29);
      bed.kernels.accumulate(to.dtype, from.dtype, dst, src, 29);
      close(bed.get(to.dtype, dst, 29), x.map((v, i) => v + pick(y, i)), to.epsilon * 1.01, 0, "accumulate");
    }
    const { at, x } = bed.random(to.dtype, 29);
    bed.kernels.scale(to.dtype, at, at, 29, 0.3);
    const scaled = bed.get(to.dtype, at, 29);
    close(scaled, x.map((v) => v * Math.fround(0.3)), to.epsilon * 1.01, 0, "scale");
    bed.kernels.scaleBy(to.dtype, at, at, 29, bed.put(float32, [-3.5]));
    close(bed.get(to.dtype, at, 29), scaled.map((v) => v * -3.5), to.epsilon * 1.01, 0, "scaleBy");
  }
});

test("reduce() agrees with float64 for every cut, and propagates NaN", async () => {
  const bed = await Bed.open();
  for (const { dtype, epsilon } of FLOATS) {
    for (const [outer, n, inner] of [[1, 1, 1], [3, 7, 1], [2, 129, 1], [1, 4, 5], [3, 6, 1], [2, 9, 70], [2, 3, 4]]) {
      assert.ok(outer !== undefined && n !== undefined && inner !== undefined);
      const { at, x } = bed.random(dtype, outer * n * inner);
      for (const op of REDUCE_OPS) {
        const dst = bed.room(dtype, outer * inner);
        bed.kernels.reduce(op, dtype, dst, at, outer, n, inner);
        const want = Array.from({ length: outer * inner }, (_, r) => {
          const column = Array.from(
            { length: n },
            (_, i) => pick(x, (Math.floor(r / inner) * n + i) * inner + r % inner),
          );
          if (op === "max") return Math.max(...column);
          if (op === "min") return Math.min(...column);
          return column.reduce((a, b) => a + b, 0) / (op === "mean" ? n : 1);
        });
        close(
          bed.get(dtype, dst, outer * inner),
          want,
          epsilon * 1.01,
          1e-12,
          `${op} ${dtype.name} ${[outer, n, inner]}`,
        );
      }
    }
    for (const op of REDUCE_OPS) {
      for (const place of [0, 3, 4, 6]) {
        const values = bed.values(7);
        values[place] = NaN;
        const dst = bed.room(dtype, 1);
        bed.kernels.reduce(op, dtype, dst, bed.put(dtype, values), 1, 7, 1);
        assert.ok(Number.isNaN(pick(bed.get(dtype, dst, 1), 0)), `${op} hides a NaN at ${place}`);
      }
    }
    const dst = bed.room(dtype, 1);
    bed.kernels.reduce("sum", dtype, dst, dst, 1, 0, 1);
    assert.deepEqual(bed.get(dtype, dst, 1), [0]);
  }
});

test("argmax() gives the first of equals, and a NaN's column", async () => {
  const bed = await Bed.open();
  for (const { dtype } of FLOATS) {
    const rows = [[1, 3, 3, 2, 0], [-5, -4, -6, -4, -9], [0, NaN, 9, NaN, 1], [-Infinity, -Infinity, -Infinity, 0, 0]];
    const dst = bed.room(int32, 4);
    bed.kernels.argmax(dtype, dst, bed.put(dtype, rows.flat()), 4, 5);
    assert.deepEqual(bed.get(int32, dst, 4), [1, 1, 1, 3]);
  }
});

test("maxAbs() finds the largest magnitude and any NaN", async () => {
  const bed = await Bed.open();
  for (const { dtype } of FLOATS) {
    for (const n of [1, 3, 4, 7, 64]) {
      const { at, x } = bed.random(dtype, n);
      assert.equal(bed.kernels.maxAbs(dtype, at, n), Math.max(...x.map(Math.abs)));
      const broken = [...x];
      broken[n - 1] = NaN;
      assert.ok(Number.isNaN(bed.kernels.maxAbs(dtype, bed.put(dtype, broken), n)));
    }
    assert.equal(bed.kernels.maxAbs(dtype, bed.room(dtype, 1), 0), 0);
  }
});

test("kernels refuse dtypes that they do not compute in", async () => {
  const bed = await Bed.open();
  const at = bed.put(int32, [1, 2]);
  assert.throws(() => bed.kernels.unary("neg", int32, at, at, 2, 0, 0), DTypeError);
  assert.throws(() => bed.kernels.reduce("sum", float64, at, at, 1, 1, 1), DTypeError);
  assert.throws(() => bed.kernels.accumulate(float32, int64, at, at, 1), DTypeError);
});
