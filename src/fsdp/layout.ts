/**
 * The plan of a flat segment: where each parameter lies and how the ranks share it. A segment is `world` runs of one length;
 * rank r owns run r. A pure function of shapes and world size, so every rank plans alike.
 *
 * Note [Row-aligned runs]: a run may end inside a parameter, but only between rows: of dim 0 where that costs less than
 * {@link PADDING_LIMIT} of the segment, else of the last dim. Since a parameter is contiguous, aligning a boundary to its
 * rows means moving its start; a parameter that spans several boundaries needs a run length that its rows divide.
 *
 * @module
 */
import { InternalError } from "../errors.ts";
import { numelOf, type Shape } from "../shape.ts";

/** Padding that row-aligned runs may cost before smaller rows are tried. */
const PADDING_LIMIT = 0.02;

/** Run lengths tried at most between two bounds: planning takes no longer for larger models. */
const TRIES = 1024;

/** How far the bounds are apart, once padding is beyond the limit. */
const WINDOW = 1.05;

/** Where things lie in a segment, in elements. */
export interface SegmentPlan {
  /** First element of each parameter, in the order given. */
  readonly offsets: readonly number[];
  /** Length of each rank's run; the segment is `world` of them. */
  readonly runLength: number;
  readonly world: number;
}

/** One rank's share of one parameter, in elements. */
export interface Share {
  /** First element, counted from the parameter's. */
  readonly offset: number;
  readonly length: number;
  /** First element, counted from the run's. */
  readonly runOffset: number;
}

/** A parameter as the planner sees it, in elements. */
interface Size {
  readonly numel: number;
  /** No boundary may fall inside one of these. */
  readonly row: number;
}

function roundUp(value: number, unit: number): number {
  return Math.ceil(value / unit) * unit;
}

function greatestDivisor(a: number, b: number): number {
  return b === 0 ? a : greatestDivisor(b, a % b);
}

/**
 * Smallest start >= cursor on the alignment from which `boundary` falls between rows. Cursor and boundary are on the
 * alignment, so the step count is the distance in steps modulo the period of rows.
 */
function alignedStart(cursor: number, boundary: number, row: number, alignment: number): number | undefined {
  const period = row / greatestDivisor(row, alignment);
  const start = cursor + ((boundary - cursor) / alignment % period) * alignment;
  return start < boundary ? start : undefined;
}

/** Places all parameters for one run length, or says that it cannot be. */
function place(
  sizes: readonly Size[],
  runLength: number,
  world: number,
  alignment: number,
): number[] | undefined {
  const offsets: number[] = [];
  let cursor = 0;
  for (const { numel, row } of sizes) {
    let start = roundUp(cursor, alignment);
    const boundary = (Math.floor(start / runLength) + 1) * runLength;
    if (start + numel > boundary) {
      const spans = Math.floor((start + numel - 1) / runLength) > Math.floor(start / runLength) + 1;
      const shifted = spans && runLength % row !== 0 ? undefined : alignedStart(start, boundary, row, alignment);
      if (shifted !== undefined && (runLength % row === 0 || shifted + numel <= boundary + runLength)) start = shifted;
      else if (numel <= runLength || runLength % row === 0) start = boundary;
      else return undefined;
    }
    offsets.push(start);
    cursor = start + numel;
    if (cursor > runLength * world) return undefined;
  }
  return offsets;
}

/**
 * The shortest run length of some between two bounds for which all parameters can be placed. A parameter so long that it
 * spans two boundaries wherever it starts needs runs of whole rows, so only common multiples of such rows are tried.
 */
function search(
  sizes: readonly Size[],
  from: number,
  to: number,
  world: number,
  alignment: number,
): SegmentPlan | undefined {
  let step = alignment;
  for (const { numel, row } of sizes) {
    if (numel >= 2 * to) step = step / greatestDivisor(step, row) * row;
  }
  while ((to - from) / step > TRIES) step *= 2; // doubling, so that some are multiples of common rows
  for (let runLength = roundUp(from, step); runLength <= to; runLength += step) {
    const offsets = place(sizes, runLength, world, alignment);
    if (offsets !== undefined) return { offsets, runLength, world };
  }
  return undefined;
}

/**
 * Plans a segment.
 *
 * @param shapes shapes of the parameters, in order
 * @param world number of ranks that share it
 * @param alignment every parameter starts on a multiple of this many elements
 */
export function planSegment(shapes: readonly Shape[], world: number, alignment: number): SegmentPlan {
  const total = shapes.reduce((sum, shape) => sum + roundUp(numelOf(shape), alignment), 0);
  const least = Math.max(alignment, roundUp(total / world, alignment));
  const outerRows = shapes.map((shape) => ({ numel: numelOf(shape), row: numelOf(shape.slice(1)) }));
  const innerRows = shapes.map((shape) => ({ numel: numelOf(shape), row: shape.length > 1 ? shape.at(-1) ?? 1 : 1 }));
  const limit = least * (1 + PADDING_LIMIT);
  let found = search(outerRows, least, limit, world, alignment);
  // A run as long as all parameters holds them whole, so this ends.
  for (
    let from = least;
    found === undefined && from <= roundUp(total, alignment);
    from = roundUp(from * WINDOW, alignment)
  ) {
    found = search(innerRows, from, Math.max(limit, from * WINDOW), world, alignment);
  }
  if (found !== undefined) return found;
  throw new InternalError(`no plan for ${shapes.length} parameters on ${world} ranks`);
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
