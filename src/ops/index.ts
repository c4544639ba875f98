/**
 * Elements by index along one dim, and the gradient, a scatter-add in the order of the index, so that the bits are always the
 * same.
 *
 * @module
 */
import { at } from "../at.ts";
import type { DevicePtr } from "../device/device.ts";
import { float32, int32 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { isDense, numelOf, sameShape, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { floatPair } from "./check.ts";
import { castTo, copyElements, writeFloat32 } from "./convert.ts";
import type { ComputeOp, OpContext } from "./op.ts";

/** Checks an index into an array of a shape: int32, with the same sizes in all dims but `dim`. */
function checkIndex(op: string, shape: Shape, index: Tensor, dim: number): void {
  if (index.dtype !== int32) throw new DTypeError(op, "the index must be int32", index.dtype.name);
  if (index.ndim !== shape.length || index.shape.some((size, i) => i !== dim && size !== shape[i])) {
    throw new ShapeError(op, `the index must have the sizes of the input but for dim ${dim}`, shape, index.shape);
  }
}

/** The kernels' arguments of an index into an array of a shape: dense, or repeated over all dims but `dim`. */
function indexArguments(context: OpContext, shape: Shape, index: Tensor, dim: number) {
  const { strides } = index.layout;
  const m = at(index.shape, dim, "dim");
  const inner = numelOf(shape.slice(dim + 1));
  const sizes = { outer: numelOf(shape.slice(0, dim)), n: at(shape, dim, "dim"), m, inner };
  const repeats = strides.every((stride, i) => i === dim || stride === 0 || index.shape[i] === 1);
  if (repeats && !isDense(index.layout)) {
    const stride = at(strides, dim, "stride of dim");
    return { ...sizes, strideOuter: 0, stride, strideInner: 0, index: index.ptr };
  }
  return { ...sizes, strideOuter: m * inner, stride: inner, strideInner: 1, index: context.dense(index).ptr };
}

/** Fills dense `dst` with the elements of `src` at the index. */
function gatherInto(context: OpContext, dst: Tensor, src: Tensor, index: Tensor, dim: number): void {
  const args = indexArguments(context, src.shape, index, dim);
  context.device.kernels.gather({ dtype: dst.dtype, ...args, dst: dst.ptr, src: context.dense(src).ptr });
}

/** Adds `src` to dense float32 elements at the index. */
function scatterInto(
  context: OpContext,
  dst: DevicePtr,
  shape: Shape,
  src: Tensor,
  index: Tensor,
  dim: number,
): void {
  const args = indexArguments(context, shape, index, dim);
  context.device.kernels.scatterAdd({ dtype: src.dtype, ...args, dst, src: context.dense(src).ptr });
}

/** x [.., n, ..], index int32 [.., m, ..] → [.., m, ..]; n and m are the sizes of the given dim. All dtypes. */
export const gatherOp: ComputeOp<number> = {
  name: "gather",
  infer: (inputs, dim) => {
    const [{ shape, dtype }, index] = [at(inputs, 0, "input"), at(inputs, 1, "input")];
    checkIndex("gather", shape, index, dim);
    return [{ shape: index.shape, dtype }];
  },
  forward: (call) => {
    gatherInto(call, call.output(0), call.input(0), call.input(1), call.attrs);
    call.save(call.input(1));
  },
  backward: (call) => {
    const { shape } = call.spec(0);
    writeFloat32(call, 0, (dx) => {
      call.device.kernels.fill({ dtype: float32, n: numelOf(shape), value: 0, dst: dx });
      scatterInto(call, dx, shape, call.grad(0), call.saved(0), call.attrs);
    });
  },
};

/** x [.., n, ..], index int32 [.., m, ..], src [.., m, ..] → x plus src at the index, [.., n, ..]. */
export const scatterAddOp: ComputeOp<number> = {
  name: "scatterAdd",
  infer: (inputs, dim) => {
    const [x, index, src] = [at(inputs, 0, "input"), at(inputs, 1, "input"), at(inputs, 2, "input")];
    const [{ shape, dtype }] = floatPair("scatterAdd", [x, src]);
    checkIndex("scatterAdd", shape, index, dim);
    if (!sameShape(index.shape, src.shape)) {
      throw new ShapeError("scatterAdd", "the index and what is added must have one shape", index.shape, src.shape);
    }
    return [{ shape, dtype }];
  },
  forward: (call) => {
    const [x, index, src, result] = [call.input(0), call.input(1), call.input(2), call.output(0)];
    const sum = result.dtype === float32 ? result : call.empty(x.shape, float32);
    if (sum === result) copyElements(sum, x);
    else castTo(sum, call.dense(x));
    scatterInto(call, sum.ptr, x.shape, src, index, call.attrs);
    if (sum !== result) castTo(result, sum);
    call.save(index);
  },
  backward: (call) => {
    call.give(0, call.grad(0));
    if (call.needs(2)) gatherInto(call, call.out(2, call.grad(0).dtype), call.grad(0), call.saved(0), call.attrs);
  },
};
