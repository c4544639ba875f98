/**
 * Placements: how a parameter is the local part of a global tensor. A placement cuts one dim over the ranks of an axis, into chunks
 * as PyTorch's `Shard(dim)` does: of one size, of which the last may be shorter. Several placements apply in order: each cuts the part
 * that the placements before it have left. {@link globalLayout} turns the elements that a rank keeps of its part, such as FSDP's flat
 * range, into boxes of the global tensor. So initialization and checkpoints see global tensors only, for any axes.
 *
 * @module
 */
import { at } from "../at.ts";
import { numelOf, type Shape } from "../shape.ts";
import type { NormReducer } from "./norm_reducer.ts";
import type { Box, ShardLayout } from "./shard_layout.ts";

/** The way in which a dim is cut over an axis. */
export interface CutRule {
  /** The dim, counted from 0. */
  readonly dim: number;
  /**
   * Number of equal parts of the dim that are each cut by themselves, e.g. 2 for a fused weight of gate and up projection.
   *
   * @default 1
   */
  readonly packs?: number;
}

/** The ranks among which a tensor is divided, this rank included. */
export interface PlacementAxis {
  /** Name of the axis, for messages. */
  readonly name: string;
  /** This rank's place. */
  readonly rank: number;
  /** The number of ranks. */
  readonly size: number;
  /** Ranks in the first group. */
  readonly worldRanks: readonly number[];
  /** Sums over the axis. */
  readonly normReducer: NormReducer;
}

/** One cut of a parameter. */
export interface Placement extends Required<CutRule> {
  /** The ranks that have the parts. */
  readonly axis: PlacementAxis;
}

/** Indices of a dim. */
interface DimRange {
  readonly begin: number;
  readonly length: number;
}

/** The range that a rank gets of `length` indices that are cut into chunks for `size` ranks; empty where there are fewer chunks. */
export function chunkRange(length: number, rank: number, size: number): DimRange {
  const chunk = Math.ceil(length / size);
  const begin = Math.min(length, rank * chunk);
  return { begin, length: Math.min(chunk, length - begin) };
}

/** Shape of a rank's part of a tensor. */
export function partShape(shape: Shape, { dim, packs, axis: { rank, size } }: Placement, of: number = rank): Shape {
  return shape.with(dim, chunkRange(at(shape, dim, "dim") / packs, of, size).length * packs);
}

/** Number of elements of the largest part, which is the first rank's. */
export function largestPart(shape: Shape, placements: readonly Placement[]): number {
  return numelOf(placements.reduce<Shape>((part, placement) => partShape(part, placement, 0), shape));
}

/** Lengths of a dim on the ranks of all axes that cut it: more than one where a cut is uneven. */
export function lengthsOf(shape: Shape, placements: readonly Placement[], dim: number): readonly number[] {
  let lengths = [at(shape, dim, "dim")];
  for (const { dim: own, packs, axis: { size } } of placements) {
    if (own !== dim) continue;
    lengths = [
      ...new Set(
        lengths.flatMap((length) =>
          Array.from({ length: size }, (_, rank) => chunkRange(length / packs, rank, size).length * packs)
        ),
      ),
    ];
  }
  return lengths;
}

/** Converts a layout within this rank's part to a layout within the global tensor, with the same order in memory. */
export function globalLayout(shape: Shape, placements: readonly Placement[], layout: ShardLayout): ShardLayout {
  const outers = placements.map((_, i) =>
    placements.slice(0, i).reduce<Shape>((part, one) => partShape(part, one), shape)
  );
  return placements.reduceRight<ShardLayout>((part, placement, i) => {
    const outer = at(outers, i, "shape");
    return { ...part, shape: outer, boxes: part.boxes.flatMap((box) => placeBox(outer, placement, box)) };
  }, layout);
}

/** Converts a box of a part to boxes of the tensor that was cut, in the order of its elements. */
function placeBox(shape: Shape, placement: Placement, box: Box): readonly Box[] {
  const { dim, packs, axis: { rank, size } } = placement;
  const pack = at(shape, dim, "dim") / packs;
  const chunk = chunkRange(pack, rank, size);
  const [first, count] = [at(box.offsets, dim, "dim"), at(box.sizes, dim, "dim")];
  const pieces: Box[] = [];
  for (let i = 0; i < packs; i++) {
    const start = i * chunk.length;
    const [low, high] = [Math.max(first, start), Math.min(first + count, start + chunk.length)];
    if (low >= high) continue;
    const offsets = box.offsets.with(dim, i * pack + chunk.begin + low - start);
    pieces.push({ offsets, sizes: box.sizes.with(dim, high - low) });
  }
  const outer = box.sizes.findIndex((length, d) => d < dim && length > 1);
  if (pieces.length < 2 || outer < 0) return pieces;
  // Elements of several packs lie side by side in each index of an outer dim.
  return Array.from({ length: at(box.sizes, outer, "dim") }, (_, i) => ({
    offsets: box.offsets.with(outer, at(box.offsets, outer, "dim") + i),
    sizes: box.sizes.with(outer, 1),
  })).flatMap((row) => placeBox(shape, placement, row));
}
