/**
 * Index of the largest element along the last dim.
 *
 * @module
 */
import { int32 } from "../dtype.ts";
import { ShapeError } from "../errors.ts";
import { numelOf } from "../shape.ts";
import { floatInput } from "./check.ts";
import type { ComputeOp } from "./op.ts";

/** [.., cols] → int32 [..], the first of equals. */
export const argmaxOp: ComputeOp<undefined> = {
  name: "argmax",
  infer: (inputs) => {
    const x = floatInput("argmax", inputs);
    if (!((x.shape.at(-1) ?? 0) > 0)) throw new ShapeError("argmax", "the last dim must have elements", x.shape);
    return [{ shape: x.shape.slice(0, -1), dtype: int32 }];
  },
  forward: (call) => {
    const x = call.dense(call.input(0));
    const [rows, cols] = [numelOf(x.shape.slice(0, -1)), x.shape.at(-1) ?? 1];
    call.device.kernels.argmax({ dtype: x.dtype, rows, cols, dst: call.output(0).ptr, src: x.ptr });
  },
};
