/**
 * The backward of a broadcast: sums a gradient over the dims that were repeated.
 *
 * @module
 */
import { sameShape, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { OpContext } from "./op.ts";
import { reduceDims } from "./reduce_dims.ts";

/** `grad` summed to `shape`, from which its own shape was broadcast; each sum is rounded once. */
export function sumTo(context: OpContext, grad: Tensor, shape: Shape): Tensor {
  if (sameShape(grad.shape, shape)) return grad;
  const lead = grad.ndim - shape.length;
  const isRepeated = (dim: number): boolean => dim < lead || (shape[dim - lead] === 1 && grad.shape[dim] !== 1);
  const sum = context.empty(shape, grad.dtype);
  reduceDims(context, "sum", grad, new Set([...grad.shape.keys()].filter(isRepeated)), sum);
  return sum;
}
