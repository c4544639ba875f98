/**
 * Copying elements between two layouts.
 *
 * @module
 */
import type { Tensor } from "../tensor/tensor.ts";

/** `dst = src`, of one shape and dtype, each in its own layout. */
export function copyElements(dst: Tensor, src: Tensor): void {
  src.device.kernels.copyStrided({
    dtype: src.dtype,
    shape: src.shape,
    dstStrides: dst.layout.strides,
    srcStrides: src.layout.strides,
    dst: dst.ptr,
    src: src.ptr,
  });
}
