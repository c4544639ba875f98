/**
 * What tensors do by several ops: each runs in a scope of its own, so that nothing but the result stays.
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

/** What `run` makes; the other tensors that it makes die. */
function resultOf(run: () => Tensor): Tensor {
  using frame = scope();
  const result = run();
  frame.keep(result);
  return result;
}

/** Computes in float32, and gives the result in the dtype of x. */
export function inFloat32(x: Tensor, run: (x: Tensor) => Tensor): Tensor {
  return resultOf(() => run(x.to(float32)).to(x.dtype));
}

/** Runs what works along the last dim along another one. */
export function alongLast(op: string, x: Tensor, dim: number, run: (x: Tensor) => Tensor): Tensor {
  const place = normalizeReducedDim(op, dim, x.shape);
  if (x.ndim === 0) return resultOf(() => run(x.unsqueeze(0)).squeeze(0));
  if (place === x.ndim - 1) return run(x);
  return resultOf(() => run(x.transpose(place, -1)).transpose(place, -1));
}

/** Runs what reduces the last dim along another one. */
export function overLast(op: string, x: Tensor, dim: number, run: (x: Tensor) => Tensor): Tensor {
  const place = normalizeReducedDim(op, dim, x.shape);
  if (x.ndim === 0) return resultOf(() => run(x.unsqueeze(0)));
  if (place === x.ndim - 1) return run(x);
  return resultOf(() => run(x.permute([...x.shape.keys()].filter((other) => other !== place).concat(place))));
}

type Dims = number | readonly number[] | undefined;

/** The variance in float32, whatever the dtype of x. */
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

/** The root, whose gradient is 0 instead of infinite where x is 0. */
function safeSqrt(x: Tensor): Tensor {
  return resultOf(() => {
    const isZero = x.eq(0);
    return x.maskedFill(isZero, 1).sqrt().maskedFill(isZero, 0);
  });
}

/** int32 numbers from `start` on, as many as a dim has elements. */
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
  // Beyond the corners all diagonals are alike.
  const [height, width] = [at(x.shape, x.ndim - 2, "dim"), at(x.shape, x.ndim - 1, "dim")];
  const first = Math.max(-height, Math.min(width, diagonal));
  return resultOf(() => {
    const [rows, cols] = [places(x, -2, first).unsqueeze(1), places(x, -1, 0)];
    return x.maskedFill(op === "tril" ? cols.gt(rows) : cols.lt(rows), 0);
  });
}

/** An index of one dim, repeated to the shape of `x` but for its own length along `dim`. */
export function alongDim(op: string, x: Tensor, dim: number, index: Tensor, run: (index: Tensor) => Tensor): Tensor {
  requireTensor(op, index, "an index tensor");
  if (index.ndim !== 1) throw new ShapeError(op, "the index must have one dim", index.shape);
  const row = x.shape.map((_, i) => i === dim ? index.numel : 1);
  return resultOf(() => run(index.reshape(row).expand(x.shape.with(dim, index.numel))));
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
