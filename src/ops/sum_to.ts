/**
 * Undoes a broadcast in the backward: sums a gradient over the dims that were repeated.
 *
 * @module
 */
import { at } from "../at.ts";
import { numelOf, sameShape, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { OpContext } from "./op.ts";

/** `grad` summed down to `shape`, which broadcasts to its shape. */
export function sumTo(context: OpContext, grad: Tensor, shape: Shape): Tensor {
  if (sameShape(grad.shape, shape)) return grad;
  let current = context.dense(grad);
  let sizes = [...grad.shape];
  const lead = sizes.length - shape.length;
  const reduceBlock = (outer: number, n: number, inner: number, to: Shape): void => {
    const next = context.empty(to, grad.dtype);
    const { dtype } = grad;
    context.device.kernels.reduce({ op: "sum", dtype, outer, n, inner, dst: next.ptr, src: current.ptr });
    current = next;
    sizes = [...to];
  };
  if (lead > 0) {
    const rest = sizes.slice(lead);
    reduceBlock(1, numelOf(sizes.slice(0, lead)), numelOf(rest), rest);
  }
  for (let dim = 0; dim < shape.length; dim++) {
    const size = at(sizes, dim, "dim");
    if (shape[dim] !== 1 || size === 1) continue;
    const to = sizes.map((value, i) => i === dim ? 1 : value);
    reduceBlock(numelOf(sizes.slice(0, dim)), size, numelOf(sizes.slice(dim + 1)), to);
  }
  return current;
}
