/**
 * Kernels on arrays as such: filling, converting, copying, element-wise functions, reductions, exact sums.
 *
 * @module
 */
import type { KernelExports } from "../../../wasm/mod.ts";
import { float32, int32 } from "../../dtype.ts";
import { BINARY_OPS, REDUCE_OPS, UNARY_OPS } from "../kernels.ts";
import type { KernelTable } from "../kernels.ts";
import { floatCode } from "./parameters.ts";
import type { Parameters } from "./parameters.ts";

/** The part of the table that is made here. */
type ArrayKernels = Pick<
  KernelTable,
  | "fill"
  | "cast"
  | "copyStrided"
  | "unary"
  | "unaryBackward"
  | "binary"
  | "accumulate"
  | "scale"
  | "scaleBy"
  | "reduce"
  | "argmax"
  | "accumulatorBytes"
  | "sumSquares"
  | "accumulatorValue"
  | "maxAbs"
>;

/** Kernels on arrays. */
export function arrayKernels(exports: KernelExports, parameters: Parameters): ArrayKernels {
  return {
    fill(dtype, dst, n, value) {
      exports.fill(dtype.code, dst, n, value);
    },
    cast(dstDtype, srcDtype, dst, src, n) {
      if (!(srcDtype === int32 && dstDtype === float32)) {
        floatCode("cast", dstDtype);
        floatCode("cast", srcDtype);
      }
      exports.cast(dstDtype.code, srcDtype.code, dst, src, n);
    },
    copyStrided(dtype, dst, dstStrides, src, srcStrides, shape) {
      exports.copy_strided(dtype.byteLength, dst, src, parameters.shape(shape, dstStrides, srcStrides));
    },
    unary(op, dtype, dst, src, n, p0, p1) {
      exports.unary(UNARY_OPS.indexOf(op), floatCode(op, dtype), dst, src, n, p0, p1);
    },
    unaryBackward(op, dtype, dx, dy, x, n, p0, p1) {
      exports.unary_backward(UNARY_OPS.indexOf(op), floatCode(op, dtype), dx, dy, x, n, p0, p1);
    },
    binary(op, dtype, dst, a, aStrides, b, bStrides, shape) {
      const ndim = parameters.shape(shape, aStrides, bStrides);
      exports.binary(BINARY_OPS.indexOf(op), floatCode(op, dtype), dst, a, b, ndim);
    },
    accumulate(dstDtype, srcDtype, dst, src, n) {
      exports.accumulate(floatCode("accumulate", dstDtype), floatCode("accumulate", srcDtype), dst, src, n);
    },
    scale(dtype, dst, src, n, factor) {
      exports.scale(floatCode("scale", dtype), dst, src, n, factor);
    },
    scaleBy(dtype, dst, src, n, factor) {
      exports.scale_by(floatCode("scaleBy", dtype), dst, src, n, factor);
    },
    reduce(op, dtype, dst, src, outer, n, inner) {
      exports.reduce(REDUCE_OPS.indexOf(op), floatCode(op, dtype), dst, src, outer, n, inner);
    },
    argmax(dtype, dst, src, rows, cols) {
      exports.argmax(floatCode("argmax", dtype), dst, src, rows, cols);
    },
    accumulatorBytes: exports.accumulator_bytes(),
    sumSquares(dtype, accumulator, src, rows, cols) {
      exports.sum_squares(floatCode("sumSquares", dtype), accumulator, src, rows, cols);
    },
    accumulatorValue(accumulator) {
      return exports.accumulator_value(accumulator);
    },
    maxAbs(dtype, src, n) {
      return exports.max_abs(floatCode("maxAbs", dtype), src, n);
    },
  };
}
