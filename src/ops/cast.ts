/**
 * Conversion between float dtypes; the gradient goes back in the input's.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import type { ComputeOp } from "./op.ts";

/** The values in the dtype given. */
export const castOp: ComputeOp<DType> = {
  name: "cast",
  infer: (inputs, dtype) => inputs.map(({ shape }) => ({ shape, dtype })),
  forward: (call) => {
    const x = call.dense(call.input(0));
    call.device.kernels.cast(call.attrs, x.dtype, call.output(0).ptr, x.ptr, x.numel);
  },
  backward: (call) => {
    const dy = call.dense(call.grad(0));
    const dx = call.out(0);
    call.device.kernels.cast(dx.dtype, dy.dtype, dx.ptr, dy.ptr, dy.numel);
  },
};
