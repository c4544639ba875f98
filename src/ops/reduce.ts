/**
 * Reductions over some or all dims.
 *
 * @module
 */
import { DTypeError } from "../errors.ts";
import { denseStrides, normalizeDim, numelOf, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { BackwardCall, ComputeOp, OpContext } from "./op.ts";

/** Which dims are reduced. */
export interface ReduceAttrs {
  /** All of them when undefined. */
  readonly dims: number | readonly number[] | undefined;
  /** Whether they stay, with size 1. */
  readonly keepDims: boolean;
}

function reducedDims(op: string, shape: Shape, dims: ReduceAttrs["dims"]): Set<number> {
  const list = dims === undefined ? shape.map((_, dim) => dim) : typeof dims === "number" ? [dims] : dims;
  return new Set(list.map((dim) => normalizeDim(op, dim, shape)));
}

/** The output's shape as if the reduced dims had stayed. */
function keptShape(shape: Shape, dims: ReadonlySet<number>): number[] {
  return shape.map((size, dim) => dims.has(dim) ? 1 : size);
}

function reduceAll(
  context: OpContext,
  op: "sum" | "mean" | "max",
  x: Tensor,
  dims: ReadonlySet<number>,
  into: Tensor,
): void {
  const { kernels } = context.device;
  let current = context.dense(x);
  const sizes = [...x.shape];
  const order = [...dims].sort((a, b) => b - a);
  while (order.length > 0) {
    const last = order.shift() ?? 0;
    let first = last;
    while (order[0] === first - 1) first = order.shift() ?? 0; // adjacent dims are one block
    const outer = numelOf(sizes.slice(0, first));
    const n = numelOf(sizes.slice(first, last + 1));
    const inner = numelOf(sizes.slice(last + 1));
    const target = order.length === 0 ? into : context.empty([outer, inner], x.dtype);
    kernels.reduce(op, x.dtype, target.ptr, current.ptr, outer, n, inner);
    sizes.fill(1, first, last + 1);
    current = target;
  }
  if (dims.size === 0) context.device.copy(into.ptr, current.ptr, x.numel * x.dtype.byteLength);
}

/** `grad` (of the reduced shape) seen as the input's shape. */
function spread(call: BackwardCall<ReduceAttrs>, name: string, grad: Tensor): Tensor {
  const { shape } = call.spec(0);
  const dims = reducedDims(name, shape, call.attrs.dims);
  const dense = call.dense(grad);
  const kept = denseStrides(keptShape(shape, dims));
  const strides = kept.map((stride, dim) => dims.has(dim) ? 0 : stride);
  return dense.view({ shape, strides, offset: dense.layout.offset });
}

/** 1 where x equals its maximum (over the reduced dims) and 0 elsewhere, divided by how many do. */
function maxShare(call: BackwardCall<ReduceAttrs>): Tensor {
  const { kernels } = call.device;
  const x = call.saved(0);
  const top = spread(call, "max", call.saved(1));
  const work = (): Tensor => call.empty(x.shape, x.dtype);
  const [difference, ones, sign, share] = [work(), work(), work(), work()];
  kernels.binary("sub", x.dtype, difference.ptr, x.ptr, x.layout.strides, top.ptr, top.layout.strides, x.shape);
  kernels.fill(x.dtype, ones.ptr, x.numel, 1);
  kernels.unaryBackward("abs", x.dtype, sign.ptr, ones.ptr, difference.ptr, x.numel, 0, 0);
  kernels.unary("abs", x.dtype, sign.ptr, sign.ptr, x.numel, 0, 0);
  const strides = x.layout.strides;
  kernels.binary("sub", x.dtype, share.ptr, ones.ptr, strides, sign.ptr, strides, x.shape);
  const dims = reducedDims("max", x.shape, call.attrs.dims);
  const count = call.empty(keptShape(x.shape, dims), x.dtype);
  reduceAll(call, "sum", share, dims, count);
  const counts = spread(call, "max", count);
  kernels.binary("div", x.dtype, share.ptr, share.ptr, strides, counts.ptr, counts.layout.strides, x.shape);
  return share;
}

function reduction(name: "sum" | "mean" | "max"): ComputeOp<ReduceAttrs> {
  return {
    name,
    infer: ([x], attrs) => {
      if (x === undefined || x.dtype.kind !== "float") {
        throw new DTypeError(name, "the input must be a float", x?.dtype.name ?? "nothing");
      }
      const dims = reducedDims(name, x.shape, attrs.dims);
      const shape = attrs.keepDims ? keptShape(x.shape, dims) : x.shape.filter((_, dim) => !dims.has(dim));
      return [{ shape, dtype: x.dtype }];
    },
    forward: (call) => {
      const x = call.dense(call.input(0));
      reduceAll(call, name, x, reducedDims(name, x.shape, call.attrs.dims), call.output(0));
      if (name === "max") call.save(x, call.output(0));
    },
    backward: (call) => {
      const grad = spread(call, name, call.grad(0));
      const { shape, dtype } = call.spec(0);
      const { kernels } = call.device;
      if (name === "sum") return call.give(0, grad);
      const dx = call.out(0, dtype);
      if (name === "mean") {
        kernels.copyStrided(dtype, dx.ptr, dx.layout.strides, grad.ptr, grad.layout.strides, shape);
        const count = numelOf(shape) / Math.max(1, call.grad(0).numel);
        return kernels.scale(dtype, dx.ptr, dx.ptr, dx.numel, 1 / count);
      }
      const share = maxShare(call);
      kernels.binary("mul", dtype, dx.ptr, grad.ptr, grad.layout.strides, share.ptr, share.layout.strides, shape);
    },
  };
}

/** Sum. */
export const sumOp: ComputeOp<ReduceAttrs> = reduction("sum");
/** Mean. */
export const meanOp: ComputeOp<ReduceAttrs> = reduction("mean");
/** Largest. */
export const maxOp: ComputeOp<ReduceAttrs> = reduction("max");
