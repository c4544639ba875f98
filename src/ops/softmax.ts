/**
 * Softmax along the last dim.
 *
 * @module
 */
import { DTypeError } from "../errors.ts";
import type { ComputeOp } from "./op.ts";

/** Softmax along the last dim. */
export const softmaxOp: ComputeOp<undefined> = {
  name: "softmax",
  infer: ([x]) => {
    if (x === undefined || x.dtype.kind !== "float" || x.ndim === 0) {
      throw new DTypeError("softmax", "the input must be a float with at least one dim", x?.dtype.name ?? "nothing");
    }
    return [{ shape: x.shape, dtype: x.dtype }];
  },
  forward: (call) => {
    const x = call.dense(call.input(0));
    const cols = x.shape.at(-1) ?? 1;
    call.device.kernels.softmax(x.dtype, call.output(0).ptr, x.ptr, x.numel / Math.max(1, cols), cols);
    call.save(call.output(0));
  },
  backward: (call) => {
    const y = call.saved(0);
    const cols = y.shape.at(-1) ?? 1;
    const rows = y.numel / Math.max(1, cols);
    const dy = call.dense(call.grad(0));
    call.device.kernels.softmaxBackward(y.dtype, call.out(0, y.dtype).ptr, dy.ptr, y.ptr, rows, cols);
  },
};
