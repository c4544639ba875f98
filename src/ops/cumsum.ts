/**
 * Sums along the last dim up to each place.
 *
 * @module
 */
import { matrixOf } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { floatInput } from "./check.ts";
import type { ComputeOp, OpContext } from "./op.ts";

function sumRows(context: OpContext, dst: Tensor, src: Tensor, reverse: boolean): void {
  const { kernels } = context.device;
  kernels.cumsum({ dtype: dst.dtype, ...matrixOf(dst), reverse, dst: dst.ptr, src: context.dense(src).ptr });
}

/** x [.., cols] → sums of the first elements of each row, as many as there are up to that place. */
export const cumsumOp: ComputeOp<undefined> = {
  name: "cumsum",
  infer: (inputs) => {
    const { shape, dtype } = floatInput("cumsum", inputs);
    return [{ shape, dtype }];
  },
  forward: (call) => sumRows(call, call.output(0), call.input(0), false),
  backward: (call) => sumRows(call, call.out(0, call.grad(0).dtype), call.grad(0), true),
};
