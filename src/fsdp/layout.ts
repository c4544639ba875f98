/**
 * The plan of a flat segment: where each parameter lies and how the ranks share it. A segment is `world` shards of one length;
 * rank r owns shard r. A pure function of sizes and world size, so every rank plans alike.
 *
 * Note [Block-aligned shards]: parameters start on multiples of 256 bytes and shards are multiples of it, so every cut
 * between two ranks falls on a 64-element block of its parameter, wherever that is inside a row. So padding is below one block
 * a parameter and one a rank, for any shapes and any number of ranks, and the norm, which is summed by such blocks, does not
 * depend on the cut.
 *
 * A parameter may be cut along one of its dims instead, as PyTorch cuts it: alone in its segment, into padded chunks. Its norm
 * adds the squares of each rank's own elements then, and so depends on the cut.
 *
 * @module
 */
import { at } from "../at.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { numelOf, type Shape } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { type Box, rangeLayout, SHARD_BLOCK, type ShardLayout } from "../tensor/shard_layout.ts";

/** What parameters and shards begin on a multiple of, in bytes of the narrowest dtype that a segment is held in. */
const ALIGNMENT_BYTES = SHARD_BLOCK * float32.byteLength;

/** Where things lie in a segment, in elements. */
export interface SegmentPlan {
  /** First element of each parameter, in the order given. */
  readonly offsets: readonly number[];
  /** Length of each rank's shard; the segment is `world` of them. */
  readonly shardLength: number;
  readonly world: number;
  /** Elements of the segment that belong to no parameter. */
  readonly padding: number;
  /** How its only parameter is cut, where that is not flat. */
  readonly chunks?: Chunks;
}

/** A parameter cut along a dim into chunks of one size, of which the last may be shorter or empty (PyTorch's `Shard(dim)`). */
export interface Chunks {
  readonly shape: Shape;
  readonly dim: number;
  /** Indices of the dim in a chunk. */
  readonly size: number;
}

function roundUp(value: number, unit: number): number {
  return Math.ceil(value / unit) * unit;
}

/**
 * Plans a segment.
 *
 * @param sizes elements of each parameter, in order
 * @param world number of ranks that share it
 * @param narrowestBytes bytes of an element in the narrowest dtype that the segment is stored, gathered or reduced in
 */
export function planSegment(sizes: readonly number[], world: number, narrowestBytes: number): SegmentPlan {
  const block = ALIGNMENT_BYTES / narrowestBytes;
  const offsets: number[] = [];
  let [end, numel] = [0, 0];
  for (const size of sizes) {
    offsets.push(end);
    end += roundUp(size, block);
    numel += size;
  }
  const shardLength = Math.max(block, roundUp(end / world, block));
  return { offsets, shardLength, world, padding: shardLength * world - numel };
}

/**
 * Plans a segment of one parameter that is cut along a dim.
 *
 * @param dim counted from the end where negative
 * @throws {ArgumentError} if there is no such dim, or one but the first does not divide evenly
 */
export function planChunks({ shape, fqn }: Parameter, dim: number, world: number): SegmentPlan {
  const place = dim < 0 ? dim + shape.length : dim;
  const length = shape[place];
  const what = `Cannot shard '${fqn}' [${shape.join(", ")}] along dim ${dim}`;
  if (length === undefined) {
    throw new ArgumentError(`${what}: give a dim from ${-shape.length} to ${shape.length - 1}, or none for a flat cut`);
  }
  if (place !== 0 && length % world !== 0) {
    throw new ArgumentError(
      `${what} over ${world} ranks: ${length} is no multiple of ${world}; shard another dim, or give none for a flat cut`,
    );
  }
  const [numel, size] = [numelOf(shape), Math.ceil(length / world)];
  const shardLength = length === 0 ? 0 : numel / length * size;
  return {
    offsets: [0],
    shardLength,
    world,
    padding: shardLength * world - numel,
    chunks: { shape, dim: place, size },
  };
}

/** A rank's chunk; of no elements where there are fewer chunks than ranks. */
export function chunkOf({ shape, dim, size }: Chunks, rank: number): Box {
  const length = at(shape, dim, "dim");
  const begin = Math.min(length, rank * size);
  return {
    offsets: shape.map((_, place) => place === dim ? begin : 0),
    sizes: shape.map((all, place) => place === dim ? Math.min(size, length - begin) : all),
  };
}

/**
 * The elements that a rank keeps of a parameter.
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
