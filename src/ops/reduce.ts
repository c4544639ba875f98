/**
 * Reductions over some or all dims, and the index of the largest element.
 *
 * @module
 */
import { requireSwitch } from "../config/known_values.ts";
import { at } from "../at.ts";
import type { ReduceOp } from "../device/kernels/signature.ts";
import { float32, int32, uint8 } from "../dtype.ts";
import { ShapeError } from "../errors.ts";
import { denseStrides, normalizeReducedDim, numelOf, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { castTo, copyElements } from "./convert.ts";
import { floatInput, requireList } from "./check.ts";
import { combineInto } from "./elementwise.ts";
import { compareInto } from "./mask.ts";
import type { BackwardCall, ComputeOp } from "./op.ts";
import { reduceDims } from "./reduce_dims.ts";

/** Largest number of elements of a dim whose indices int32 holds. */
const MOST_PLACES = 2 ** 31 - 1;

/** The dims of a reduction. */
export interface ReduceAttrs {
  /** The reduced dims; all if undefined or empty, as in PyTorch. A tensor without dims may name 0 or -1. */
  readonly dims: number | readonly number[] | undefined;
  /** True if they stay, with size 1. */
  readonly keepDims: boolean;
}

function reducedDims(op: string, shape: Shape, dims: ReduceAttrs["dims"]): Set<number> {
  const list = dims === undefined ? [] : typeof dims === "number" ? [dims] : dims;
  requireList(op, list, "a dim, a list of dims, or nothing for all of them");
  if (list.length === 0) return new Set(shape.keys());
  const reduced = new Set(list.map((dim) => normalizeReducedDim(op, dim, shape)));
  if (reduced.size < list.length) throw new ShapeError(op, `dims [${list.join(", ")}] must name each dim once`, shape);
  return shape.length > 0 ? reduced : new Set();
}

/** Refuses the largest or smallest of no elements, as PyTorch does. */
function requireElements(op: string, shape: Shape, dims: ReadonlySet<number>): void {
  for (const dim of dims) {
    if (shape[dim] === 0) throw new ShapeError(op, `dim ${dim} must have elements, as nothing has no ${op}`, shape);
  }
}

/** The output's shape with reduced dims of size 1. */
function keptShape(shape: Shape, dims: ReadonlySet<number>): number[] {
  return shape.map((size, dim) => dims.has(dim) ? 1 : size);
}

/** `grad`, in the reduced shape, broadcast to the input's shape. */
function spread(call: BackwardCall<ReduceAttrs>, name: string, grad: Tensor): Tensor {
  const { shape } = call.spec(0);
  const dims = reducedDims(name, shape, call.attrs.dims);
  const dense = call.dense(grad);
  const kept = denseStrides(keptShape(shape, dims));
  const strides = kept.map((stride, dim) => dims.has(dim) ? 0 : stride);
  return dense.view({ shape, strides, offset: dense.layout.offset });
}

/**
 * The gradient of x: the extreme's, shared evenly by the elements equal to it. They are counted in float32, as float16 counts to
 * 65504 and bfloat16 to 256 only.
 */
function extremeGradient(call: BackwardCall<ReduceAttrs>, name: ReduceOp): Tensor {
  const [x, grad] = [call.saved(0), call.dense(call.grad(0))];
  const dims = reducedDims(name, x.shape, call.attrs.dims);
  const [isExtreme, share] = [call.empty(x.shape, uint8), call.empty(x.shape, float32)];
  compareInto(call, "eq", isExtreme, x, spread(call, name, call.saved(1)));
  castTo(share, isExtreme);
  const count = call.empty(keptShape(x.shape, dims), float32);
  if (dims.size === 0) copyElements(count, share);
  else reduceDims(call, "sum", share, dims, count);
  combineInto(call, "div", share, share, spread(call, name, count));
  const wide = grad.dtype === float32 ? grad : call.empty(grad.shape, float32);
  if (wide !== grad) castTo(wide, grad);
  combineInto(call, "mul", share, spread(call, name, wide), share);
  return share;
}

function reduction(name: ReduceOp): ComputeOp<ReduceAttrs> {
  const what = `apply '${name}'`;
  return {
    name,
    infer: (inputs, attrs) => {
      const x = floatInput(name, inputs);
      requireSwitch(what, "keepDims", attrs.keepDims);
      const dims = reducedDims(name, x.shape, attrs.dims);
      if (name === "max" || name === "min") requireElements(name, x.shape, dims);
      const shape = attrs.keepDims ? keptShape(x.shape, dims) : x.shape.filter((_, dim) => !dims.has(dim));
      return [{ shape, dtype: x.dtype }];
    },
    forward: (call) => {
      const [x, into] = [call.input(0), call.output(0)];
      const dims = reducedDims(name, x.shape, call.attrs.dims);
      if (dims.size === 0) copyElements(into, x);
      else reduceDims(call, name, x, dims, into);
      if (name === "max" || name === "min") call.save(call.dense(x), into);
    },
    backward: (call) => {
      const { dtype } = call.spec(0);
      if (name === "max" || name === "min") {
        castTo(call.out(0, dtype), extremeGradient(call, name));
        return;
      }
      const grad = spread(call, name, call.grad(0));
      if (name === "sum") return call.give(0, grad);
      const dx = call.out(0, dtype);
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
export const maxOp: ComputeOp<ReduceAttrs> = reduction("max");
export const minOp: ComputeOp<ReduceAttrs> = reduction("min");

/** Index of the largest element along the last dim: [.., cols] → int32 [..], the first among equals. */
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
