/**
 * Kernels on arrays: filling, converting, copying, element-wise functions, masks, reductions, elements by index.
 *
 * @module
 */

export const ARRAY_KERNELS = {
  /** `dst[0..n) = value`; integers are rounded towards zero. */
  fill: {
    values: { dtype: "dtype", n: "size", value: "f64" },
    arrays: { dst: { writes: "dtype", shape: ["n"] } },
  },
  /**
   * `dst[i] = src[i]`.
   * - to a float: rounded to nearest even
   * - float to int32: rounded towards zero; out of range, the nearer end; 0 of NaN
   * - to uint8: the low byte of that int32
   */
  cast: {
    values: {
      dstDtype: { dtypes: ["float32", "bfloat16", "float16", "int32", "uint8"] },
      srcDtype: { dtypes: ["float32", "bfloat16", "float16", "int32", "uint8"] },
      n: "size",
    },
    arrays: {
      dst: { writes: "dstDtype", shape: ["n"] },
      src: { reads: "srcDtype", shape: ["n"] },
    },
  },
  /** Copies between two strided arrays of one shape. */
  copyStrided: {
    values: { dtype: "dtype", shape: "shape", dstStrides: "strides", srcStrides: "strides" },
    arrays: {
      dst: { writes: "dtype", shape: ["shape"], strides: ["dstStrides"] },
      src: { reads: "dtype", shape: ["shape"], strides: ["srcStrides"] },
    },
  },
  /** `dst[i] = op(src[i])`. */
  unary: {
    flops: ["n"],
    values: { dtype: "float", op: "unaryOp", n: "size", p0: "f32", p1: "f32" },
    arrays: {
      dst: { writes: "dtype", shape: ["n"], mayBe: ["src"] },
      src: { reads: "dtype", shape: ["n"] },
    },
  },
  /** `dx = dy * op'(x)`. */
  unaryBackward: {
    flops: [2, "n"],
    values: { dtype: "float", op: "unaryOp", n: "size", p0: "f32", p1: "f32" },
    arrays: {
      dx: { writes: "dtype", shape: ["n"], mayBe: ["dy", "x"] },
      dy: { reads: "dtype", shape: ["n"] },
      x: { reads: "dtype", shape: ["n"] },
    },
  },
  /** `dst = op(a, b)`, dense of `shape`; `a` and `b` have strides over the same shape (0 broadcasts). */
  binary: {
    flops: ["shape"],
    values: { dtype: "float", op: "binaryOp", shape: "shape", aStrides: "strides", bStrides: "strides" },
    arrays: {
      dst: { writes: "dtype", shape: ["shape"], mayBe: ["a", "b"] },
      a: { reads: "dtype", shape: ["shape"], strides: ["aStrides"] },
      b: { reads: "dtype", shape: ["shape"], strides: ["bStrides"] },
    },
  },
  /** `dst = op(a, b)`, 1 or 0, dense of `shape`; strides as in `binary`. */
  compare: {
    flops: ["shape"],
    values: {
      dtype: { dtypes: ["float32", "bfloat16", "float16", "int32", "uint8"] },
      op: "compareOp",
      shape: "shape",
      aStrides: "strides",
      bStrides: "strides",
    },
    arrays: {
      dst: { writes: "uint8", shape: ["shape"] },
      a: { reads: "dtype", shape: ["shape"], strides: ["aStrides"] },
      b: { reads: "dtype", shape: ["shape"], strides: ["bStrides"] },
    },
  },
  /** `dst = condition ? a : b`, dense of `shape`; strides as in `binary`. */
  select: {
    values: { dtype: "dtype", shape: "shape", conditionStrides: "strides", aStrides: "strides", bStrides: "strides" },
    arrays: {
      dst: { writes: "dtype", shape: ["shape"] },
      condition: { reads: "uint8", shape: ["shape"], strides: ["conditionStrides"] },
      a: { reads: "dtype", shape: ["shape"], strides: ["aStrides"] },
      b: { reads: "dtype", shape: ["shape"], strides: ["bStrides"] },
    },
  },
  /** `dst[o, j, k] = src[o, index[o, j, k], k]`; an index out of range gives zero and a fault. Strides of the index may be 0. */
  gather: {
    values: {
      dtype: "dtype",
      outer: "size",
      n: "size",
      m: "size",
      inner: "size",
      strideOuter: "size",
      stride: "size",
      strideInner: "size",
    },
    arrays: {
      dst: { writes: "dtype", shape: ["outer", "m", "inner"] },
      src: { reads: "dtype", shape: ["outer", "n", "inner"] },
      index: {
        reads: "int32",
        shape: ["outer", "m", "inner"],
        strides: ["strideOuter", "stride", "strideInner"],
      },
    },
    faults: true,
  },
  /** `dst[o, index[o, j, k], k] += src[o, j, k]` in the order of `src`; an index out of range is a fault. */
  scatterAdd: {
    flops: ["outer", "m", "inner"],
    values: {
      dtype: "float",
      outer: "size",
      n: "size",
      m: "size",
      inner: "size",
      strideOuter: "size",
      stride: "size",
      strideInner: "size",
    },
    arrays: {
      dst: { updates: "float32", shape: ["outer", "n", "inner"] },
      src: { reads: "dtype", shape: ["outer", "m", "inner"] },
      index: {
        reads: "int32",
        shape: ["outer", "m", "inner"],
        strides: ["strideOuter", "stride", "strideInner"],
      },
    },
    faults: true,
  },
  /** `dst[i] += src[i]`. */
  accumulate: {
    flops: ["n"],
    values: { dstDtype: "float", srcDtype: "float", n: "size" },
    arrays: {
      dst: { updates: "dstDtype", shape: ["n"] },
      src: { reads: "srcDtype", shape: ["n"] },
    },
  },
  /** `dst[i] = src[i] * factor`. */
  scale: {
    flops: ["n"],
    values: { dtype: "float", n: "size", factor: "f32" },
    arrays: {
      dst: { writes: "dtype", shape: ["n"], mayBe: ["src"] },
      src: { reads: "dtype", shape: ["n"] },
    },
  },
  /** `dst[i] = src[i] * factor` with the factor in device memory; a factor of 1 costs nothing in place. */
  scaleBy: {
    flops: ["n"],
    values: { dtype: "float", n: "size" },
    arrays: {
      dst: { writes: "dtype", shape: ["n"], mayBe: ["src"] },
      src: { reads: "dtype", shape: ["n"] },
      factor: { reads: "float32", shape: [1] },
    },
  },
  /** Largest absolute value; 0 of no elements, NaN if any element is NaN. */
  maxAbs: {
    flops: ["n"],
    values: { dtype: "float", n: "size" },
    arrays: {
      dst: { writes: "float32", shape: [1] },
      src: { reads: "dtype", shape: ["n"] },
    },
  },
  /** Reduces the middle of [outer, n, inner]; sums are float64 inside. */
  reduce: {
    flops: ["outer", "n", "inner"],
    values: { dtype: "float", op: "reduceOp", outer: "size", n: "size", inner: "size" },
    arrays: {
      dst: { writes: "dtype", shape: ["outer", "inner"] },
      src: { reads: "dtype", shape: ["outer", "n", "inner"] },
    },
  },
  /** Column of each row's largest value, the first among equals; NaN counts as largest. */
  argmax: {
    flops: ["rows", "cols"],
    values: { dtype: "float", rows: "size", cols: "size" },
    arrays: {
      dst: { writes: "int32", shape: ["rows"] },
      src: { reads: "dtype", shape: ["rows", "cols"] },
    },
  },
  /** Sums of each row up to each column, float64 inside; with `reverse`, from that column to the end, for the backward. */
  cumsum: {
    flops: ["rows", "cols"],
    values: { dtype: "float", rows: "size", cols: "size", reverse: "switch" },
    arrays: {
      dst: { writes: "dtype", shape: ["rows", "cols"], mayBe: ["src"] },
      src: { reads: "dtype", shape: ["rows", "cols"] },
    },
  },
} as const;
