/**
 * The same values in another layout, and the dense copy that some views need.
 *
 * @module
 */
import { at } from "../at.ts";
import { ShapeError } from "../errors.ts";
import {
  broadcastShapes,
  broadcastStrides,
  denseLayout,
  isDense,
  type Layout,
  narrowed,
  requireShape,
  resolveShape,
  sameShape,
  type Shape,
} from "../shape.ts";
import { copyElements } from "./convert.ts";
import type { BackwardCall, ComputeOp, ViewOp } from "./op.ts";
import { sumTo } from "./sum_to.ts";

/** Gives the gradient in the shape of the input. */
function giveReshaped<A>(call: BackwardCall<A>): void {
  const grad = call.dense(call.grad(0));
  call.give(0, grad.view(denseLayout(call.spec(0).shape, grad.layout.offset)));
}

/** Dense elements in another shape. */
export const reshapeOp: ViewOp<Shape> = {
  name: "reshape",
  view: (input, shape) => {
    if (!isDense(input.layout)) throw new ShapeError("reshape", "the elements must be dense", input.shape);
    return denseLayout(resolveShape("reshape", input.shape, shape), input.layout.offset);
  },
  backward: giveReshaped,
};

/** Removes some dims of size 1. */
export const squeezeOp: ViewOp<readonly number[]> = {
  name: "squeeze",
  view: ({ layout: { shape, strides, offset } }, dims) => {
    const stays = (_: number, dim: number): boolean => !dims.includes(dim);
    return { shape: shape.filter(stays), strides: strides.filter(stays), offset };
  },
  backward: giveReshaped,
};

/** Inserts a dim of size 1 before the given dim. */
export const unsqueezeOp: ViewOp<number> = {
  name: "unsqueeze",
  view: ({ layout: { shape, strides, offset } }, dim) => {
    return { shape: shape.toSpliced(dim, 0, 1), strides: strides.toSpliced(dim, 0, 1), offset };
  },
  backward: giveReshaped,
};

function permuted({ shape, strides, offset }: Layout, dims: readonly number[]): Layout {
  return {
    shape: dims.map((dim) => at(shape, dim, "dim")),
    strides: dims.map((dim) => at(strides, dim, "dim")),
    offset,
  };
}

/** Dims in another order. */
export const permuteOp: ViewOp<readonly number[]> = {
  name: "permute",
  view: (input, dims) => {
    if (
      dims.length !== input.ndim || new Set(dims).size !== dims.length ||
      dims.some((dim) => input.shape[dim] === undefined)
    ) {
      throw new ShapeError("permute", `dims [${dims.join(", ")}] must name each dim once`, input.shape);
    }
    return permuted(input.layout, dims);
  },
  backward: (call) => {
    const grad = call.grad(0);
    call.give(0, grad.view(permuted(grad.layout, call.attrs.map((_, dim) => call.attrs.indexOf(dim)))));
  },
};

/** The range of {@link narrowOp}. */
export interface NarrowAttrs {
  readonly dim: number;
  readonly start: number;
  readonly length: number;
}

/** A range of one dim. */
export const narrowOp: ViewOp<NarrowAttrs> = {
  name: "narrow",
  view: (input, { dim, start, length }) => {
    const size = at(input.shape, dim, "dim");
    const areIntegers = Number.isInteger(start) && Number.isInteger(length);
    if (!areIntegers || start < 0 || length < 0 || start + length > size) {
      const expected = `[${start}, ${start + length}) must lie in dim ${dim} of size ${size}`;
      throw new ShapeError("narrow", expected, input.shape);
    }
    return narrowed(input.layout, dim, start, length);
  },
  backward: (call) => {
    const grad = call.grad(0);
    const dx = call.out(0);
    call.device.kernels.fill({ dtype: dx.dtype, n: dx.numel, value: 0, dst: dx.ptr });
    const { dim, start, length } = call.attrs;
    const target = dx.view(narrowed(dx.layout, dim, start, length));
    copyElements(target, grad.dtype === dx.dtype ? grad : grad.to(dx.dtype));
  },
};

/** Repeats dims of size 1, and adds leading dims. */
export const expandOp: ViewOp<Shape> = {
  name: "expand",
  view: (input, shape) => {
    requireShape("expand", shape);
    if (!sameShape(broadcastShapes("expand", input.shape, shape), shape)) {
      throw new ShapeError("expand", "only dims of size 1 can be repeated", input.shape, shape);
    }
    return { shape, strides: broadcastStrides(input.layout, shape), offset: input.layout.offset };
  },
  backward: (call) => call.give(0, sumTo(call, call.grad(0), call.spec(0).shape)),
};

/** A dense copy. */
export const denseOp: ComputeOp<undefined> = {
  name: "contiguous",
  infer: (inputs) => inputs.map(({ shape, dtype }) => ({ shape, dtype })),
  forward: (call) => {
    copyElements(call.output(0), call.input(0));
  },
  backward: (call) => call.give(0, call.grad(0)),
};
