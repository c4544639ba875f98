/**
 * Matrix products: batched, and the linear layer's `x Wᵀ + b`. The kernel takes transposed layouts without a copy.
 *
 * @module
 */
import { at } from "../at.ts";
import { type DType, float32 } from "../dtype.ts";
import { ShapeError } from "../errors.ts";
import { blocksOf } from "../device/convert.ts";
import { asQuantized } from "../quantized.ts";
import { broadcastShapes, broadcastStrides, isDense, numelOf, sameShape, type Shape, twoSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { castTo, copyElements, writeFloat32 } from "./convert.ts";
import { floatInput, floatPair } from "./check.ts";
import { combineInto } from "./elementwise.ts";
import type { BackwardCall, ComputeOp, ForwardCall, OpContext } from "./op.ts";
import { sumTo } from "./sum_to.ts";

/** A matrix, or a batch of them, as the kernel takes it. */
interface Operand {
  readonly tensor: Tensor;
  readonly trans: boolean;
  readonly ld: number;
  readonly stride: number;
}

/** Sizes or strides of the last two dims, which must exist. */
function lastTwo(list: readonly number[]): readonly [rows: number, cols: number] {
  return [at(list, list.length - 2, "dim"), at(list, list.length - 1, "dim")];
}

/** The operand as the kernel reads its last two dims: as stored, transposed, or from a dense copy. */
function operand(context: OpContext, tensor: Tensor, batch: number): Operand {
  const { shape, strides } = tensor.layout;
  const [rows, cols] = lastTwo(shape);
  const [rowStride, colStride] = lastTwo(strides);
  const lead = { shape: shape.slice(0, -2), strides: strides.slice(0, -2), offset: 0 };
  const step = lead.strides.findLast((_, dim) => lead.shape[dim] !== 1) ?? 0;
  const repeats = lead.strides.every((stride, dim) => stride === 0 || lead.shape[dim] === 1);
  const regular = batch === 1 || repeats || isDense({ ...lead, strides: lead.strides.map((stride) => stride / step) });
  if (regular && (colStride === 1 || cols === 1) && rowStride >= cols) {
    return { tensor, trans: false, ld: Math.max(rowStride, 1), stride: step };
  }
  if (regular && (rowStride === 1 || rows === 1) && colStride >= rows) {
    return { tensor, trans: true, ld: Math.max(colStride, 1), stride: step };
  }
  return { tensor: context.dense(tensor), trans: false, ld: cols, stride: rows * cols };
}

/** `out = alpha * op(a) op(b) + beta * out` for each matrix of the batch; `out` is dense. */
export function product(
  context: OpContext,
  out: Tensor,
  a: Operand,
  b: Operand,
  m: number,
  n: number,
  k: number,
  { alpha = 1, beta = 0 }: { readonly alpha?: number; readonly beta?: number } = {},
): void {
  const batch = m * n === 0 ? 0 : out.numel / (m * n);
  // One literal: spreads of three took a twentieth of a small layer's step.
  context.device.kernels.gemm({
    dtype: a.tensor.dtype,
    outDtype: out.dtype,
    transA: a.trans,
    transB: b.trans,
    m,
    n,
    k,
    batch,
    alpha,
    beta,
    a: a.tensor.ptr,
    b: b.tensor.ptr,
    c: out.ptr,
    lda: a.ld,
    ldb: b.ld,
    ldc: n,
    strideA: a.stride,
    strideB: b.stride,
    strideC: m * n,
  });
}

/** A tensor with its leading dims repeated to `lead`. */
function repeated(tensor: Tensor, lead: Shape): Tensor {
  const shape = [...lead, ...tensor.shape.slice(-2)];
  return tensor.view({ shape, strides: broadcastStrides(tensor.layout, shape), offset: tensor.layout.offset });
}

function swapped(tensor: Tensor): Tensor {
  const swap = <T>(list: readonly T[]): T[] => [...list.slice(0, -2), ...list.slice(-2).reverse()];
  const { shape, strides, offset } = tensor.layout;
  return tensor.view({ shape: swap(shape), strides: swap(strides), offset });
}

function multiply(context: OpContext, a: Tensor, b: Tensor, lead: Shape, dtype: DType, into?: Tensor): Tensor {
  const [m, k] = lastTwo(a.shape);
  const [, n] = lastTwo(b.shape);
  const out = into ?? context.empty([...lead, m, n], dtype);
  const batch = numelOf(lead);
  const [left, right] = [operand(context, repeated(a, lead), batch), operand(context, repeated(b, lead), batch)];
  product(context, out, left, right, m, n, k);
  return out;
}

/** Gives the product as gradient of input i, summed over the dims that were broadcast: in float32, so that it is rounded once. */
function giveProduct(call: BackwardCall<undefined>, i: number, a: Tensor, b: Tensor): void {
  const { dtype, shape } = call.grad(0);
  const [lead, spec] = [shape.slice(0, -2), call.spec(i)];
  const isFull = sameShape(lead, spec.shape.slice(0, -2));
  const sum = sumTo(call, multiply(call, a, b, lead, isFull ? dtype : float32), spec.shape);
  if (sum.dtype === dtype) return call.give(i, sum);
  castTo(call.out(i, dtype), sum);
}

/** Keeps of two factors what the backward reads: each for the gradient of the other, so the input of a frozen weight is not kept. */
function saveFactors<A>(call: ForwardCall<A>, a: Tensor, b: Tensor): void {
  if (call.needs(1)) call.save(a);
  if (call.needs(0)) call.save(b);
}

/** The factors that {@link saveFactors} kept. */
function savedFactors<A>(call: BackwardCall<A>): readonly [a: Tensor | undefined, b: Tensor | undefined] {
  const a = call.needs(1) ? call.saved(0) : undefined;
  return [a, call.needs(0) ? call.saved(a === undefined ? 0 : 1) : undefined];
}

/** [.., m, k] @ [.., k, n], leading dims broadcasting. */
export const matmulOp: ComputeOp<undefined> = {
  name: "matmul",
  infer: (inputs) => {
    const [a, b] = floatPair("matmul", inputs);
    if (a.ndim < 2 || b.ndim < 2 || a.shape.at(-1) !== b.shape.at(-2)) {
      throw new ShapeError("matmul", "inner dims must match", a.shape, b.shape);
    }
    const lead = broadcastShapes("matmul", a.shape.slice(0, -2), b.shape.slice(0, -2));
    return [{ shape: [...lead, lastTwo(a.shape)[0], lastTwo(b.shape)[1]], dtype: a.dtype }];
  },
  forward: (call) => {
    const [a, b, out] = [call.input(0), call.input(1), call.output(0)];
    multiply(call, a, b, out.shape.slice(0, -2), out.dtype, out);
    saveFactors(call, a, b);
  },
  backward: (call) => {
    const dy = call.grad(0);
    const [a, b] = savedFactors(call);
    if (b !== undefined) giveProduct(call, 0, dy, swapped(b));
    if (a !== undefined) giveProduct(call, 1, swapped(a), dy);
  },
};

/** Layout of the weight of {@link linearOp}. */
export type WeightLayout = "outIn" | "inOut";

function featuresOf({ shape }: Pick<Tensor, "shape">, layout: WeightLayout) {
  const [first, second] = twoSizes("linear", shape, "the weight must have two dims");
  return layout === "outIn" ? [first, second] as const : [second, first] as const;
}

/** The input and the weight: floats of one dtype, or a quantized weight. */
function inputAndWeight(inputs: readonly Tensor[]): readonly [Tensor, Tensor] {
  const [x, weight] = inputs;
  if (x === undefined || weight === undefined || asQuantized(weight.dtype) === undefined) {
    return floatPair("linear", inputs, "input and weight");
  }
  return [floatInput("linear", inputs), weight];
}

/** The same as {@link product} of one matrix, whose right operand may be quantized. */
function productOf(
  context: OpContext,
  out: Tensor,
  a: Operand,
  b: Operand,
  m: number,
  n: number,
  k: number,
  { beta = 0 }: { readonly beta?: number } = {},
): void {
  const quantized = asQuantized(b.tensor.dtype);
  if (quantized === undefined) return product(context, out, a, b, m, n, k, { beta });
  context.device.kernels.gemmQuantized({
    ...{
      dtype: a.tensor.dtype,
      outDtype: out.dtype,
      transB: b.trans,
      m,
      n,
      k,
      alpha: 1,
      beta,
      lda: a.ld,
      ldc: Math.max(n, 1),
    },
    ...blocksOf(quantized, n * k),
    ...{ a: a.tensor.ptr, b: b.tensor.ptr, c: out.ptr },
  });
}

/**
 * x [.., in], weight [out, in] or [in, out], optional bias [out] → x Wᵀ + b or x W + b, [.., out]. The weight's gradient is
 * written directly to its memory. A quantized weight is dequantized in the product, and has no gradient.
 */
export const linearOp: ComputeOp<WeightLayout> = {
  name: "linear",
  infer: (inputs, layout) => {
    const [x, weight] = inputAndWeight(inputs);
    const bias = inputs[2];
    const [outFeatures, inFeatures] = featuresOf(weight, layout);
    if (weight.ndim !== 2 || x.shape.at(-1) !== inFeatures || x.ndim === 0) {
      throw new ShapeError("linear", "the last dim must equal the weight's", x.shape, weight.shape);
    }
    if (bias !== undefined && (bias.ndim !== 1 || bias.shape[0] !== outFeatures || bias.dtype !== x.dtype)) {
      throw new ShapeError("linear", `the bias must be [${outFeatures}]`, bias.shape);
    }
    return [{ shape: [...x.shape.slice(0, -1), outFeatures], dtype: x.dtype }];
  },
  forward: (call) => {
    const [x, weight, out] = [call.dense(call.input(0)), call.dense(call.input(1)), call.output(0)];
    const [n, k] = featuresOf(weight, call.attrs);
    const rows = numelOf(x.shape.slice(0, -1));
    const right = call.attrs === "outIn" ? flat(weight, k, true) : flat(weight, n, false);
    const bias = call.inputs > 2 ? call.input(2) : undefined;
    // A narrow output begins as the bias, so that the sum of all is rounded once.
    const beta = bias !== undefined && out.dtype !== float32 ? 1 : 0;
    if (bias !== undefined && beta === 1) {
      copyElements(
        out,
        bias.view({ ...out.layout, strides: broadcastStrides(bias.layout, out.shape), offset: bias.layout.offset }),
      );
    }
    productOf(call, out, flat(x, k, false), right, rows, n, k, { beta });
    if (bias !== undefined && beta === 0) combineInto(call, "add", out, out, bias);
    saveFactors(call, x, weight);
  },
  backward: (call) => {
    const dy = call.dense(call.grad(0));
    const [x, weight] = savedFactors(call);
    const [n, k] = featuresOf(call.spec(1), call.attrs);
    const rows = numelOf(dy.shape.slice(0, -1));
    const isOutIn = call.attrs === "outIn";
    if (weight !== undefined) {
      const right = isOutIn ? flat(weight, k, false) : flat(weight, n, true);
      productOf(call, call.out(0), flat(dy, n, false), right, rows, k, n);
    }
    if (x !== undefined) {
      if (isOutIn) product(call, call.out(1), flat(dy, n, true), flat(x, k, false), n, k, rows);
      else product(call, call.out(1), flat(x, k, true), flat(dy, n, false), k, n, rows);
    }
    if (call.inputs > 2 && call.needs(2)) {
      writeFloat32(call, 2, (dst) => {
        const wide = dy.dtype === float32 ? dy : call.empty([rows, n], float32);
        if (wide !== dy) castTo(wide, dy);
        call.device.kernels.reduce({ op: "sum", dtype: float32, outer: 1, n: rows, inner: n, dst, src: wide.ptr });
      });
    }
  },
};

/** A dense tensor as one matrix with `cols` columns. */
export function flat(tensor: Tensor, cols: number, trans: boolean): Operand {
  return { tensor, trans, ld: Math.max(cols, 1), stride: 0 };
}
