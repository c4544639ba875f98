/**
 * The plan of a flat segment: the place of each parameter in it, and the elements of each that a rank keeps. A segment is divided into
 * shards of one length, and rank r keeps shard r. The plan depends on sizes alone, so all ranks have the same plan.
 *
 * Note [Block-aligned shards]: parameters begin on multiples of 256 bytes, and the length of shards is such a multiple. So a cut
 * between shards never divides a block of 64 elements of a parameter, but it may divide a row. There is less padding than one block for
 * each parameter and one for each rank, for any shapes and any number of ranks. The norm is summed by these blocks, so it does not
 * depend on the number of ranks.
 *
 * A parameter may be cut along one of its dims instead, as PyTorch does. It is alone in its segment then, in padded chunks. Its norm
 * adds the squares of each rank's elements, and so does depend on the number of ranks.
 *
 * @module
 */
import { at } from "../at.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { numelOf, type Shape } from "../shape.ts";
import { lengthsOf } from "../tensor/cut.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { type Box, rangeLayout, SHARD_BLOCK, type ShardLayout } from "../tensor/shard_layout.ts";

/** Parameters and shards begin on a multiple of these bytes, in the narrowest dtype that a segment is held in. */
const ALIGNMENT_BYTES = SHARD_BLOCK * float32.byteLength;

/** Places and lengths in a segment, in elements. */
export interface SegmentPlan {
  /** First element of each parameter, in the order given. */
  readonly offsets: readonly number[];
  /** Length of each rank's shard. */
  readonly shardLength: number;
  /** Number of shards in the segment: the size of the shard group. */
  readonly numShards: number;
  /** Elements of the segment that belong to no parameter. */
  readonly padding: number;
  /** The chunks of its only parameter, where that is cut along a dim. */
  readonly chunks?: Chunks;
}

/** A parameter cut along a dim into chunks of one size; the last chunks may be shorter or empty (PyTorch's `Shard(dim)`). */
export interface Chunks {
  readonly shape: Shape;
  readonly dim: number;
  /** Number of indices of the dim in a chunk. */
  readonly size: number;
}

function roundUp(value: number, unit: number): number {
  return Math.ceil(value / unit) * unit;
}

/**
 * Plans a segment.
 *
 * @param sizes elements of each parameter, in order
 * @param numShards number of ranks that share it
 * @param narrowestBytes bytes of an element in the narrowest dtype that the segment is stored, gathered or reduced in
 * @param leastBlock elements that no cut divides, a power of two
 */
export function planSegment(
  sizes: readonly number[],
  numShards: number,
  narrowestBytes: number,
  leastBlock: number = 1,
): SegmentPlan {
  const block = Math.max(ALIGNMENT_BYTES / narrowestBytes, leastBlock);
  const offsets: number[] = [];
  let [end, numel] = [0, 0];
  for (const size of sizes) {
    offsets.push(end);
    end += roundUp(size, block);
    numel += size;
  }
  const shardLength = Math.max(block, roundUp(end / numShards, block));
  return { offsets, shardLength, numShards, padding: shardLength * numShards - numel };
}

/**
 * Plans a segment whose parameters may be cut over another axis too, such as a tensor-parallel one. Where that cut is uneven, ranks
 * of the axis hold parts of different sizes. The plan gives each parameter the room of its largest part on all of them, so that every
 * rank keeps the same ranges of the parameters behind it. The room that a smaller part leaves counts as padding.
 */
export function planParts(
  parameters: readonly Pick<Parameter, "numel" | "largestNumel">[],
  numShards: number,
  narrowestBytes: number,
  leastBlock: number = 1,
): SegmentPlan {
  const plan = planSegment(parameters.map(({ largestNumel }) => largestNumel), numShards, narrowestBytes, leastBlock);
  const smaller = parameters.reduce((sum, { numel, largestNumel }) => sum + largestNumel - numel, 0);
  return smaller === 0 ? plan : { ...plan, padding: plan.padding + smaller };
}

/**
 * Plans a segment of one parameter that is cut along a dim.
 *
 * @param dim counted from the end where negative
 * @throws {ArgumentError} if there is no such dim, or a dim but the first does not divide evenly
 */
export function planChunks(parameter: Parameter, dim: number, numShards: number): SegmentPlan {
  const { shape, fqn, globalShape, placements } = parameter;
  const place = dim < 0 ? dim + shape.length : dim;
  const length = shape[place];
  const what = `Cannot shard '${fqn}' [${shape.join(", ")}] along dim ${dim}`;
  if (length === undefined) {
    throw new ArgumentError(`${what}: give a dim from ${-shape.length} to ${shape.length - 1}, or none for a flat cut`);
  }
  // If the cut over another axis is uneven, all ranks of that axis refuse together.
  if (place !== 0 && lengthsOf(globalShape, placements, place).some((one) => one % numShards !== 0)) {
    throw new ArgumentError(
      `${what} over ${numShards} ranks: ${length} is no multiple of ${numShards}; shard another dim, or give none for a flat cut`,
    );
  }
  const [numel, size] = [numelOf(shape), Math.ceil(length / numShards)];
  const shardLength = length === 0 ? 0 : numel / length * size;
  return {
    offsets: [0],
    shardLength,
    numShards,
    padding: shardLength * numShards - numel,
    chunks: { shape, dim: place, size },
  };
}

/** A rank's chunk. It has no elements where there are fewer chunks than ranks. */
export function chunkOf({ shape, dim, size }: Chunks, rank: number): Box {
  const length = at(shape, dim, "dim");
  const begin = Math.min(length, rank * size);
  return {
    offsets: shape.map((_, place) => place === dim ? begin : 0),
    sizes: shape.map((all, place) => place === dim ? Math.min(size, length - begin) : all),
  };
}

/**
 * The elements of a parameter that a rank keeps.
 *
 * @param start first element of the parameter in the segment
 */
export function shardLayoutOf(plan: SegmentPlan, start: number, shape: Shape, rank: number): ShardLayout {
  if (plan.chunks !== undefined) {
    const box = chunkOf(plan.chunks, rank);
    const numel = numelOf(box.sizes);
    return { shape, boxes: numel === 0 ? [] : [box], numel, offset: 0 };
  }
  const [shardStart, numel] = [rank * plan.shardLength, numelOf(shape)];
  const begin = Math.min(Math.max(start, shardStart), start + numel);
  const end = Math.max(begin, Math.min(start + numel, shardStart + plan.shardLength));
  const offset = Math.max(0, Math.min(begin - shardStart, plan.shardLength));
  return rangeLayout(shape, begin - start, end - begin, offset);
}
