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
import { lengthsOf } from "../tensor/cut.ts";
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

/** One rank's share of one parameter, in elements. */
export interface Share {
  /** First element, counted from the parameter's. */
  readonly offset: number;
  readonly length: number;
  /** First element, counted from the rank's shard of the segment. */
  readonly runOffset: number;
}

/** What a rank owns of a parameter. */
export interface OwnedPart {
  readonly shard: ShardLayout;
  /** First element, counted from the rank's shard of the segment. */
  readonly runOffset: number;
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
 * Plans the segment of some parameters by the largest parts of their global tensors, so that ranks which hold smaller parts of some
 * keep the same ranges of the others; what a part is smaller counts as padding.
 */
export function planParts(
  parameters: readonly Pick<Parameter, "numel" | "largestNumel">[],
  world: number,
  narrowestBytes: number,
): SegmentPlan {
  const plan = planSegment(parameters.map(({ largestNumel }) => largestNumel), world, narrowestBytes);
  const smaller = parameters.reduce((sum, { numel, largestNumel }) => sum + largestNumel - numel, 0);
  return smaller === 0 ? plan : { ...plan, padding: plan.padding + smaller };
}

/** What `rank` owns of the parameter that starts at `offset` with `numel` elements. */
export function shareOf(plan: SegmentPlan, offset: number, numel: number, rank: number): Share {
  const shardStart = rank * plan.shardLength;
  const begin = Math.min(Math.max(offset, shardStart), offset + numel);
  const end = Math.max(begin, Math.min(offset + numel, shardStart + plan.shardLength));
  return {
    offset: begin - offset,
    length: end - begin,
    runOffset: Math.max(0, Math.min(begin - shardStart, plan.shardLength)),
  };
}

/**
 * Plans a segment of one parameter that is cut along a dim.
 *
 * @param dim counted from the end where negative
 * @throws {ArgumentError} if there is no such dim, or one but the first does not divide evenly
 */
export function planChunks(parameter: Parameter, dim: number, world: number): SegmentPlan {
  const { shape, fqn, globalShape, placements } = parameter;
  const place = dim < 0 ? dim + shape.length : dim;
  const length = shape[place];
  const what = `Cannot shard '${fqn}' [${shape.join(", ")}] along dim ${dim}`;
  if (length === undefined) {
    throw new ArgumentError(`${what}: give a dim from ${-shape.length} to ${shape.length - 1}, or none for a flat cut`);
  }
  // Of an uneven cut, all ranks of its axis refuse what one of them would.
  if (place !== 0 && lengthsOf(globalShape, placements, place).some((one) => one % world !== 0)) {
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

/** What `rank` owns of the parameter of that shape that starts at `offset`. */
export function ownedPart(plan: SegmentPlan, offset: number, shape: Shape, rank: number): OwnedPart {
  if (plan.chunks !== undefined) {
    const box = chunkOf(plan.chunks, rank);
    const numel = numelOf(box.sizes);
    return { shard: { shape, boxes: numel === 0 ? [] : [box], numel }, runOffset: 0 };
  }
  const share = shareOf(plan, offset, numelOf(shape), rank);
  return { shard: rangeLayout(shape, share.offset, share.length), runOffset: share.runOffset };
}
