/**
 * Softmax along the last dim, and its logarithm.
 *
 * @module
 */
import { DTypeError } from "../errors.ts";
import { matrixOf } from "../shape.ts";
import type { ComputeOp } from "./op.ts";

function softmax(name: "softmax" | "logSoftmax"): ComputeOp<undefined> {
  const log = name === "logSoftmax";
  return {
    name,
    infer: ([x]) => {
      if (x === undefined || x.dtype.kind !== "float" || x.ndim === 0) {
        throw new DTypeError(name, "the input must be a float with at least one dim", x?.dtype.name ?? "nothing");
      }
      return [{ shape: x.shape, dtype: x.dtype }];
    },
    forward: (call) => {
      const x = call.dense(call.input(0));
      call.device.kernels.softmax({ dtype: x.dtype, log, ...matrixOf(x), y: call.output(0).ptr, x: x.ptr });
      call.save(call.output(0));
    },
    backward: (call) => {
      const y = call.saved(0);
      const [dx, dy] = [call.out(0, y.dtype), call.dense(call.grad(0))];
      call.device.kernels.softmaxBackward({ dtype: y.dtype, log, ...matrixOf(y), dx: dx.ptr, dy: dy.ptr, y: y.ptr });
    },
  };
}

/** Softmax along the last dim. */
export const softmaxOp: ComputeOp<undefined> = softmax("softmax");
/** The logarithm of the softmax, exact where the softmax would be 0. */
export const logSoftmaxOp: ComputeOp<undefined> = softmax("logSoftmax");
