/**
 * Conversion between float dtypes; the gradient goes back in the input's.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { ComputeOp } from "./op.ts";

/** `dst = src`, converted; both dense. */
export function castTo(dst: Tensor, src: Tensor): void {
  src.device.kernels.cast({ dstDtype: dst.dtype, srcDtype: src.dtype, n: src.numel, dst: dst.ptr, src: src.ptr });
}

/** The values in the dtype given. */
export const castOp: ComputeOp<DType> = {
  name: "cast",
  infer: (inputs, dtype) => inputs.map(({ shape }) => ({ shape, dtype })),
  forward: (call) => {
    castTo(call.output(0), call.dense(call.input(0)));
  },
  backward: (call) => {
    castTo(call.out(0), call.dense(call.grad(0)));
  },
};
