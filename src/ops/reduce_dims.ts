/**
 * One reduction over any set of dims. Reduced elements are first made adjacent, so that one kernel call adds all of them in
 * float64 and rounds once: several calls would round to the dtype in between.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ReduceOp } from "../device/kernels/signature.ts";
import { numelOf } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { copyElements } from "./convert.ts";
import type { OpContext } from "./op.ts";

/** An array that is reduced in its middle dim. */
interface DimBlock {
  readonly tensor: Tensor;
  readonly outer: number;
  readonly n: number;
  readonly inner: number;
}

/**
 * The tensor as [outer, n, inner], of which `n` is reduced. It is copied if it is not dense or the reduced dims are not adjacent.
 */
function blockOf(context: OpContext, x: Tensor, dims: ReadonlySet<number>): DimBlock {
  // A dim of size 1 does not separate others.
  const places = [...x.shape.keys()].filter((dim) => x.shape[dim] !== 1);
  const reduced = places.filter((dim) => dims.has(dim));
  const [first = x.ndim, last = x.ndim] = [reduced[0], reduced.at(-1)];
  const kept = places.filter((dim) => !dims.has(dim));
  const before = kept.filter((dim) => dim < last);
  const behind = kept.filter((dim) => dim > last);
  const sizeOf = (list: readonly number[]): number => numelOf(list.map((dim) => at(x.shape, dim, "dim")));
  const [outer, n, inner] = [sizeOf(before), sizeOf(reduced), sizeOf(behind)];
  if (before.every((dim) => dim < first)) return { tensor: context.dense(x), outer, n, inner };
  const order = [...before, ...reduced, ...behind];
  const shape = order.map((dim) => at(x.shape, dim, "dim"));
  const strides = order.map((dim) => at(x.layout.strides, dim, "stride of dim"));
  const copy = context.empty(shape, x.dtype);
  copyElements(copy, x.view({ shape, strides, offset: x.layout.offset }));
  return { tensor: copy, outer, n, inner };
}

/** Fills dense `into`, which has the remaining dims, with the reduction of `x` over at least one given dim. */
export function reduceDims(context: OpContext, op: ReduceOp, x: Tensor, dims: ReadonlySet<number>, into: Tensor): void {
  const { tensor, outer, n, inner } = blockOf(context, x, dims);
  context.device.kernels.reduce({ dtype: x.dtype, op, outer, n, inner, dst: into.ptr, src: tensor.ptr });
}
