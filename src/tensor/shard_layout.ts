/**
 * The elements of a tensor that a rank keeps: boxes of the full shape, dense and consecutive in the rank's memory. FSDP's cuts
 * are ranges of the full tensor in row-major order, each at most 2·ndim − 1 boxes. All other cuts are boxes as well, so
 * checkpoints and initialization read one description.
 *
 * @module
 */
import { at } from "../at.ts";
import { numelOf, type Shape } from "../shape.ts";

/**
 * Cuts fall between blocks of this many elements of a parameter: the norm sums each block first, so it does not depend on the
 * cuts.
 */
export const SHARD_BLOCK = 64;

/** A range of indices in every dim. */
export interface Box {
  /** First index in every dim. */
  readonly offsets: readonly number[];
  /** Number of indices in every dim. */
  readonly sizes: Shape;
}

/** The elements that a rank keeps of one tensor, and their place in its memory. */
export interface ShardLayout {
  /** Shape of the full tensor. */
  readonly shape: Shape;
  /** The boxes, in the order of their elements in memory; empty if the rank keeps nothing. */
  readonly boxes: readonly Box[];
  /** Number of elements kept. */
  readonly numel: number;
  /** The first element kept, counted in the flat shard that holds it, where the others follow without a gap. */
  readonly offset: number;
}

/** Elements that are contiguous both in the full tensor, in row-major order, and in the rank's memory. */
export interface ElementSlice {
  /** Index of the first element in the full tensor. */
  readonly offset: number;
  readonly length: number;
  /** Index of the first element among those that the rank keeps. */
  readonly local: number;
}

/** The box of all elements. */
export function fullBox(shape: Shape): Box {
  return { offsets: shape.map(() => 0), sizes: shape };
}

/** The layout of a rank that keeps the full tensor, in memory of its own. */
export function fullLayout(shape: Shape): ShardLayout {
  return { shape, boxes: [fullBox(shape)], numel: numelOf(shape), offset: 0 };
}

/**
 * The layout of a rank that keeps a range of the full tensor in row-major order, in the fewest boxes: one for complete rows, and
 * up to two more for each further dim in which the range begins or ends.
 *
 * @param begin index of the first element of the range
 * @param offset its index in the rank's flat shard
 */
export function rangeLayout(shape: Shape, begin: number, length: number, offset: number = 0): ShardLayout {
  const boxes: Box[] = [];
  divide(shape, begin, length, [], boxes);
  return { shape, boxes, numel: length, offset };
}

/** Splits a range of the part of `shape` at the indices `prefix` into boxes. */
function divide(shape: Shape, offset: number, length: number, prefix: readonly number[], into: Box[]): void {
  if (length === 0) return;
  const rest = shape.slice(prefix.length + 1);
  if (prefix.length === shape.length) {
    into.push({ offsets: prefix, sizes: prefix.map(() => 1) });
    return;
  }
  const row = numelOf(rest);
  const end = offset + length;
  const firstFullRow = Math.ceil(offset / row);
  const endFullRow = Math.floor(end / row);
  if (firstFullRow > endFullRow) return divide(shape, offset % row, length, [...prefix, endFullRow], into);
  divide(shape, offset % row, firstFullRow * row - offset, [...prefix, firstFullRow - 1], into);
  if (endFullRow > firstFullRow) {
    into.push({
      offsets: [...prefix, firstFullRow, ...rest.map(() => 0)],
      sizes: [...prefix.map(() => 1), endFullRow - firstFullRow, ...rest],
    });
  }
  divide(shape, 0, end - endFullRow * row, [...prefix, endFullRow], into);
}

/** Elements that are contiguous in two boxes, both dense in row-major order. */
export interface SharedSlice {
  /** Index of the first element in the first box. */
  readonly inFirst: number;
  /** Index of the first element in the second box. */
  readonly inSecond: number;
  readonly length: number;
}

/** The elements that two boxes of one tensor share, in order, in the fewest slices. */
export function sharedSlices(first: Box, second: Box): SharedSlice[] {
  const from = first.offsets.map((offset, dim) => Math.max(offset, at(second.offsets, dim, "dim")));
  const sizes = from.map((offset, dim) => Math.min(endOf(first, dim), endOf(second, dim)) - offset);
  if (sizes.some((size) => size <= 0)) return [];
  // Dims after the last one that either box spans only in part are contiguous with it in both boxes.
  let inner = sizes.length;
  while (
    inner > 0 && at(first.sizes, inner - 1, "dim") === at(sizes, inner - 1, "dim") &&
    at(second.sizes, inner - 1, "dim") === at(sizes, inner - 1, "dim")
  ) {
    inner--;
  }
  const dim = Math.max(0, inner - 1);
  const length = numelOf(sizes.slice(dim));
  const outer = sizes.slice(0, dim);
  return Array.from({ length: numelOf(outer) }, (_, i) => {
    const index = [...from];
    for (let d = dim - 1, rest = i; d >= 0; d--) {
      index[d] = at(from, d, "dim") + rest % at(outer, d, "dim");
      rest = Math.floor(rest / at(outer, d, "dim"));
    }
    return { inFirst: placeIn(first, index), inSecond: placeIn(second, index), length };
  });
}

function endOf({ offsets, sizes }: Box, dim: number): number {
  return at(offsets, dim, "dim") + at(sizes, dim, "dim");
}

/** Position of an index in the row-major order of a box. */
function placeIn({ offsets, sizes }: Box, index: readonly number[]): number {
  return index.reduce((place, i, dim) => place * at(sizes, dim, "dim") + i - at(offsets, dim, "dim"), 0);
}

/** Each box, with the index of its first element in the rank's memory. */
export function placedBoxes(
  { boxes }: Pick<ShardLayout, "boxes">,
): readonly { readonly box: Box; readonly local: number }[] {
  let next = 0;
  return boxes.map((box) => {
    const local = next;
    next += numelOf(box.sizes);
    return { box, local };
  });
}

/** The slices of a layout, in the order of the rank's memory; adjacent slices are merged. */
export function elementSlices(layout: Pick<ShardLayout, "shape" | "boxes">): ElementSlice[] {
  const slices: ElementSlice[] = [];
  const full = fullBox(layout.shape);
  for (const { box, local } of placedBoxes(layout)) {
    for (const { inFirst, inSecond: offset, length } of sharedSlices(box, full)) {
      const last = slices.at(-1);
      if (last !== undefined && last.offset + last.length === offset) {
        slices[slices.length - 1] = { ...last, length: last.length + length };
      } else slices.push({ offset, length, local: local + inFirst });
    }
  }
  return slices;
}
