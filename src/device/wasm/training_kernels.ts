/**
 * Kernels of training: optimizer updates, sums over ranks, random numbers.
 *
 * @module
 */
import type { KernelExports } from "../../../wasm/mod.ts";
import { float32, int64 } from "../../dtype.ts";
import { DTypeError } from "../../errors.ts";
import type { KernelTable } from "../kernels.ts";
import { floatCode } from "./parameters.ts";
import type { Parameters } from "./parameters.ts";

/** The part of the table that is made here. */
type TrainingKernels = Pick<KernelTable, "adamw" | "sgd" | "sumRanks" | "uniform" | "normal">;

/** Kernels of training. */
export function trainingKernels(exports: KernelExports, parameters: Parameters): TrainingKernels {
  return {
    adamw(param, grad, expAvg, expAvgSq, ranges, numRanges, args) {
      exports.adamw(
        param,
        grad,
        expAvg,
        expAvgSq,
        ranges,
        numRanges,
        args.beta1,
        args.beta2,
        args.eps,
        args.biasCorrection1,
        args.biasCorrection2Sqrt,
      );
    },
    sgd(param, grad, momentumBuffer, ranges, numRanges, momentum, dampening, nesterov, first) {
      exports.sgd(
        param,
        grad,
        momentumBuffer,
        ranges,
        numRanges,
        momentum,
        dampening,
        Number(nesterov),
        Number(first),
      );
    },
    sumRanks(dstDtype, dtype, dst, sources, n, scale, accumulate) {
      if (dtype !== dstDtype && dstDtype !== float32) {
        throw new DTypeError("sumRanks", "the sum is float32 or of the sources' dtype", dtype.name, dstDtype.name);
      }
      if (dstDtype !== int64) floatCode("sumRanks", dtype);
      const count = parameters.addresses(sources);
      exports.sum_ranks(dstDtype.code, dtype.code, dst, count, n, scale, Number(accumulate));
    },
    uniform(dst, n, key, offset, low, high) {
      exports.uniform(dst, n, key, offset, low, high);
    },
    normal(dst, n, key, offset, mean, std) {
      exports.normal(dst, n, key, offset, mean, std);
    },
  };
}
