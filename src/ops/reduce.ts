/**
 * Reductions over some or all dims, and the place of the largest element.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ReduceOp } from "../device/kernels/signature.ts";
import { int32, uint8 } from "../dtype.ts";
import { ShapeError } from "../errors.ts";
import { denseStrides, normalizeDim, numelOf, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { castTo, copyElements } from "./convert.ts";
import { floatInput } from "./check.ts";
import { combineInto } from "./elementwise.ts";
import { compareInto } from "./mask.ts";
import type { BackwardCall, ComputeOp, OpContext } from "./op.ts";

/** Most elements of a dim whose places are given: int32 holds them. */
const MOST_PLACES = 2 ** 31 - 1;

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
  op: ReduceOp,
  x: Tensor,
  dims: ReadonlySet<number>,
  into: Tensor,
): void {
  const { kernels } = context.device;
  let current = context.dense(x);
  const sizes = [...x.shape];
  const order = [...dims].sort((a, b) => b - a);
  for (let last = order.shift(); last !== undefined; last = order.shift()) {
    let first = last;
    for (; order[0] === first - 1; first--) order.shift(); // adjacent dims are one block
    const outer = numelOf(sizes.slice(0, first));
    const n = numelOf(sizes.slice(first, last + 1));
    const inner = numelOf(sizes.slice(last + 1));
    const target = order.length === 0 ? into : context.empty([outer, inner], x.dtype);
    kernels.reduce({ dtype: x.dtype, op, outer, n, inner, dst: target.ptr, src: current.ptr });
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

/** 1 where x is the extreme (over the reduced dims) and 0 elsewhere, divided by how many are. */
function extremeShare(call: BackwardCall<ReduceAttrs>, name: ReduceOp): Tensor {
  const x = call.saved(0);
  const [isExtreme, share] = [call.empty(x.shape, uint8), call.empty(x.shape, x.dtype)];
  compareInto(call, "eq", isExtreme, x, spread(call, name, call.saved(1)));
  castTo(share, isExtreme);
  const dims = reducedDims(name, x.shape, call.attrs.dims);
  const count = call.empty(keptShape(x.shape, dims), x.dtype);
  reduceAll(call, "sum", share, dims, count);
  combineInto(call, "div", share, share, spread(call, name, count));
  return share;
}

function reduction(name: ReduceOp): ComputeOp<ReduceAttrs> {
  return {
    name,
    infer: (inputs, attrs) => {
      const x = floatInput(name, inputs);
      const dims = reducedDims(name, x.shape, attrs.dims);
      const shape = attrs.keepDims ? keptShape(x.shape, dims) : x.shape.filter((_, dim) => !dims.has(dim));
      return [{ shape, dtype: x.dtype }];
    },
    forward: (call) => {
      const x = call.dense(call.input(0));
      reduceAll(call, name, x, reducedDims(name, x.shape, call.attrs.dims), call.output(0));
      if (name === "max" || name === "min") call.save(x, call.output(0));
    },
    backward: (call) => {
      const grad = spread(call, name, call.grad(0));
      if (name === "sum") return call.give(0, grad);
      const { dtype } = call.spec(0);
      const dx = call.out(0, dtype);
      if (name !== "mean") return combineInto(call, "mul", dx, grad, extremeShare(call, name));
      copyElements(dx, grad);
      const factor = Math.max(1, call.grad(0).numel) / dx.numel;
      call.device.kernels.scale({ dtype, n: dx.numel, factor, dst: dx.ptr, src: dx.ptr });
    },
  };
}

/** Sum. */
export const sumOp: ComputeOp<ReduceAttrs> = reduction("sum");
/** Mean. */
export const meanOp: ComputeOp<ReduceAttrs> = reduction("mean");
/** Largest. */
export const maxOp: ComputeOp<ReduceAttrs> = reduction("max");
/** Smallest. */
export const minOp: ComputeOp<ReduceAttrs> = reduction("min");

/** Index of the largest element along the last dim: [.., cols] → int32 [..], the first of equals. */
export const argmaxOp: ComputeOp<undefined> = {
  name: "argmax",
  infer: (inputs) => {
    const x = floatInput("argmax", inputs);
    const cols = x.shape.at(-1);
    if (cols === undefined || cols < 1 || cols > MOST_PLACES) {
      throw new ShapeError("argmax", `the last dim must have from 1 to ${MOST_PLACES} elements`, x.shape);
    }
    return [{ shape: x.shape.slice(0, -1), dtype: int32 }];
  },
  forward: (call) => {
    const x = call.dense(call.input(0));
    const [rows, cols] = [numelOf(x.shape.slice(0, -1)), at(x.shape, x.ndim - 1, "dim")];
    call.device.kernels.argmax({ dtype: x.dtype, rows, cols, dst: call.output(0).ptr, src: x.ptr });
  },
};
