/**
 * The plan of a flat segment: where each parameter lies and how the ranks share it. A segment is `world` runs of one length;
 * rank r owns run r. A pure function of sizes and world size, so every rank plans alike.
 *
 * Note [Block-aligned runs]: parameters start on multiples of 256 bytes and runs are multiples of it, so every cut
 * between two ranks falls on a 64-element block of its parameter, wherever that is inside a row. So padding is below one block
 * a parameter and one a rank, for any shapes and any number of ranks, and the norm, which is summed by such blocks, does not
 * depend on the cut.
 *
 * @module
 */
import { float32 } from "../dtype.ts";
import { SHARD_BLOCK } from "../tensor/shard_layout.ts";

/** What parameters and runs begin on a multiple of, in bytes of the narrowest dtype that a segment is held in. */
const ALIGNMENT_BYTES = SHARD_BLOCK * float32.byteLength;

/** Where things lie in a segment, in elements. */
export interface SegmentPlan {
  /** First element of each parameter, in the order given. */
  readonly offsets: readonly number[];
  /** Length of each rank's run; the segment is `world` of them. */
  readonly runLength: number;
  readonly world: number;
  /** Elements of the segment that belong to no parameter. */
  readonly padding: number;
}

/** One rank's share of one parameter, in elements. */
export interface Share {
  /** First element, counted from the parameter's. */
  readonly offset: number;
  readonly length: number;
  /** First element, counted from the run's. */
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
  const runLength = Math.max(block, roundUp(end / world, block));
  return { offsets, runLength, world, padding: runLength * world - numel };
}

/** What `rank` owns of the parameter that starts at `offset` with `numel` elements. */
export function shareOf(plan: SegmentPlan, offset: number, numel: number, rank: number): Share {
  const runStart = rank * plan.runLength;
  const begin = Math.min(Math.max(offset, runStart), offset + numel);
  const end = Math.max(begin, Math.min(offset + numel, runStart + plan.runLength));
  return {
    offset: begin - offset,
    length: end - begin,
    runOffset: Math.max(0, Math.min(begin - runStart, plan.runLength)),
  };
}
