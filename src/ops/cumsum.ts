/**
 * Cumulative sums along the last dim.
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

/** x [.., cols] → [.., cols]: the sum of each row's elements up to each column. */
export const cumsumOp: ComputeOp<undefined> = {
  name: "cumsum",
  infer: (inputs) => {
    const { shape, dtype } = floatInput("cumsum", inputs);
    return [{ shape, dtype }];
  },
  forward: (call) => sumRows(call, call.output(0), call.input(0), false),
  backward: (call) => sumRows(call, call.out(0, call.grad(0).dtype), call.grad(0), true),
};
