/**
 * Copies of elements between dtypes and layouts.
 *
 * @module
 */
import type { DevicePtr } from "../device/device.ts";
import { KERNELS } from "../device/kernels/table.ts";
import { type DType, float32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { expectDtype } from "./check.ts";
import type { BackwardCall, ComputeOp } from "./op.ts";

/** `dst = src`, converted; both dense. */
export function castTo(dst: Tensor, src: Tensor): void {
  src.device.kernels.cast({ dstDtype: dst.dtype, srcDtype: src.dtype, n: src.numel, dst: dst.ptr, src: src.ptr });
}

/** `dst = src`, of one shape and dtype, each in its own layout. */
export function copyElements(dst: Tensor, src: Tensor): void {
  if (dst.dtype !== src.dtype) throw new InternalError(`elements of ${src.dtype.name} are copied to ${dst.dtype.name}`);
  const strides = { dstStrides: dst.layout.strides, srcStrides: src.layout.strides };
  src.device.kernels.copyStrided({ dtype: src.dtype, shape: src.shape, ...strides, dst: dst.ptr, src: src.ptr });
}

/**
 * Lets `launch` write the gradient of input i in float32, as some kernels do for all dtypes, and casts it if its destination is
 * narrower.
 */
export function writeFloat32<A>(call: BackwardCall<A>, i: number, launch: (out: DevicePtr) => void): void {
  const out = call.out(i);
  if (out.dtype === float32) return launch(out.ptr);
  const wide = call.empty(out.shape, float32);
  launch(wide.ptr);
  castTo(out, wide);
}

/** The values in the integer dtype given, rounded towards zero: constants. */
export const castToIntOp: ComputeOp<DType> = {
  name: "to",
  infer: (inputs, dtype) => {
    const { dstDtype, srcDtype } = KERNELS.cast.values;
    expectDtype("to", dtype, dstDtype.dtypes);
    for (const input of inputs) expectDtype("to", input.dtype, srcDtype.dtypes);
    return inputs.map(({ shape }) => ({ shape, dtype }));
  },
  forward: (call) => {
    castTo(call.output(0), call.dense(call.input(0)));
  },
};

/** The values in the given float dtype; the gradient is cast back to the input's dtype. */
export const castOp: ComputeOp<DType> = {
  ...castToIntOp,
  backward: (call) => {
    castTo(call.out(0), call.dense(call.grad(0)));
  },
};
