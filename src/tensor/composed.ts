/**
 * Functions of tensors that use several ops: each opens a scope, so that only the result stays.
 *
 * @module
 */
import { at } from "../at.ts";
import { float32, int32 } from "../dtype.ts";
import { ArgumentError, ShapeError } from "../errors.ts";
import { requireTensor } from "../ops/check.ts";
import { normalizeDim, normalizeReducedDim } from "../shape.ts";
import { valueText } from "../words.ts";
import { scope } from "./scope.ts";
import type { Tensor } from "./tensor.ts";

/** The result of `compute`; its other tensors are freed. */
function resultOf(compute: () => Tensor): Tensor {
  using frame = scope();
  const result = compute();
  frame.keep(result);
  return result;
}

/** Computes in float32, and casts the result to the dtype of x. */
export function inFloat32(x: Tensor, compute: (x: Tensor) => Tensor): Tensor {
  return resultOf(() => compute(x.to(float32)).to(x.dtype));
}

/** Applies a function of the last dim along another dim. */
export function alongLast(op: string, x: Tensor, dim: number, compute: (x: Tensor) => Tensor): Tensor {
  const place = normalizeReducedDim(op, dim, x.shape);
  if (x.ndim === 0) return resultOf(() => compute(x.unsqueeze(0)).squeeze(0));
  if (place === x.ndim - 1) return compute(x);
  return resultOf(() => compute(x.transpose(place, -1)).transpose(place, -1));
}

/** Applies a reduction of the last dim along another dim. */
export function overLast(op: string, x: Tensor, dim: number, compute: (x: Tensor) => Tensor): Tensor {
  const place = normalizeReducedDim(op, dim, x.shape);
  if (x.ndim === 0) return resultOf(() => compute(x.unsqueeze(0)));
  if (place === x.ndim - 1) return compute(x);
  return resultOf(() => compute(x.permute([...x.shape.keys()].filter((other) => other !== place).concat(place))));
}

type Dims = number | readonly number[] | undefined;

function wideVariance(x: Tensor, dims: Dims, keepDims: boolean, correction: number): Tensor {
  if (typeof correction !== "number") {
    throw new ArgumentError(`Cannot take a variance with correction ${valueText(correction)}: give a number`);
  }
  const wide = x.to(float32);
  const mean = wide.mean(dims, true);
  const squares = wide.sub(mean).square().sum(dims, keepDims);
  const count = mean.numel === 0 ? 0 : x.numel / mean.numel;
  return squares.mul(1 / Math.max(0, count - correction));
}

/** See {@link Tensor.var}. */
export function variance(x: Tensor, dims: Dims, keepDims: boolean, correction: number): Tensor {
  return resultOf(() => wideVariance(x, dims, keepDims, correction).to(x.dtype));
}

/** See {@link Tensor.std}. */
export function deviation(x: Tensor, dims: Dims, keepDims: boolean, correction: number): Tensor {
  return resultOf(() => safeSqrt(wideVariance(x, dims, keepDims, correction)).to(x.dtype));
}

/** The square root, with gradient 0 instead of infinity where x is 0. */
function safeSqrt(x: Tensor): Tensor {
  return resultOf(() => {
    const isZero = x.eq(0);
    return x.maskedFill(isZero, 1).sqrt().maskedFill(isZero, 0);
  });
}

/** int32 numbers from `start` on, one for each index of a dim. */
function places(x: Tensor, dim: number, start: number): Tensor {
  const numbers = Int32Array.from({ length: at(x.shape, x.ndim + dim, "dim") }, (_, i) => start + i);
  return x.spawn([numbers.length], int32, "places").copyFromHost(numbers);
}

/** See {@link Tensor.tril} and {@link Tensor.triu}. */
export function triangle(op: "tril" | "triu", x: Tensor, diagonal: number): Tensor {
  if (x.ndim < 2) throw new ShapeError(op, "it must have at least two dims", x.shape);
  if (!Number.isInteger(diagonal)) {
    throw new ArgumentError(`Cannot apply '${op}' from diagonal ${diagonal}: give an integer`);
  }
  // Beyond the corners all diagonals give the same.
  const [height, width] = [at(x.shape, x.ndim - 2, "dim"), at(x.shape, x.ndim - 1, "dim")];
  const first = Math.max(-height, Math.min(width, diagonal));
  return resultOf(() => {
    const [rows, cols] = [places(x, -2, first).unsqueeze(1), places(x, -1, 0)];
    return x.maskedFill(op === "tril" ? cols.gt(rows) : cols.lt(rows), 0);
  });
}

/** Expands an index of one dim to the shape of `x`, with its own length along `dim`. */
export function alongDim(op: string, x: Tensor, dim: number, index: Tensor, apply: (index: Tensor) => Tensor): Tensor {
  requireTensor(op, index, "an index tensor");
  if (index.ndim !== 1) throw new ShapeError(op, "the index must have one dim", index.shape);
  const row = x.shape.map((_, i) => i === dim ? index.numel : 1);
  return resultOf(() => apply(index.reshape(row).expand(x.shape.with(dim, index.numel))));
}

function expectCount(op: string, count: number, what: string): void {
  if (Number.isInteger(count) && count > 0) return;
  throw new ArgumentError(`Cannot apply '${op}' with ${count} ${what}: give an integer above 0`);
}

/** See {@link Tensor.split}. */
export function split(x: Tensor, sizes: number | readonly number[], dim: number): readonly Tensor[] {
  const place = normalizeDim("split", dim, x.shape);
  const length = at(x.shape, place, "dim");
  if (typeof sizes === "number") {
    expectCount("split", sizes, "elements a part");
    const parts = Math.max(1, Math.ceil(length / sizes));
    return split(x, Array.from({ length: parts }, (_, i) => Math.min(sizes, length - i * sizes)), place);
  }
  if (sizes.reduce((sum, size) => sum + size, 0) !== length) {
    throw new ShapeError("split", `the sizes ${sizes.join(", ")} must add up to that of dim ${place}`, x.shape);
  }
  let start = 0;
  return sizes.map((size) => {
    const part = x.narrow(place, start, size);
    start += size;
    return part;
  });
}

/** See {@link Tensor.chunk}. */
export function chunk(x: Tensor, chunks: number, dim: number): readonly Tensor[] {
  expectCount("chunk", chunks, "parts");
  const place = normalizeDim("chunk", dim, x.shape);
  return split(x, Math.max(1, Math.ceil(at(x.shape, place, "dim") / chunks)), place);
}
