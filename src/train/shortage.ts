/**
 * Describes a step that does not fit the memory of some rank: how much it needs, for which purposes, and which settings are enough.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { MemoryTerms } from "../device/allocator.ts";
import { OutOfMemoryError } from "../errors.ts";
import { countOf, formatBytes } from "../words.ts";

/** The memory that a step needs. */
export interface MemoryNeed {
  /** The memory's name. */
  readonly where: string;
  /** Bytes that the memory must have, gaps between blocks included. */
  readonly bytes: number;
  /** Bytes in use at once. */
  readonly peakBytes: number;
  /** The terms, which add up to the peak. */
  readonly terms: MemoryTerms;
  /** Bytes that there are. */
  readonly capacity: number;
}

/** A need that is not met. */
export interface Shortage extends MemoryNeed {
  /** The rank that has it. */
  readonly rank: number;
}

/** The rank that exceeds its memory by the largest share; undefined if all ranks have enough. Collective: every rank gets the same. */
export function worstShortage(group: ProcessGroup, needs: readonly MemoryNeed[]): Shortage | undefined {
  const all = group.exchangeText(JSON.stringify(needs), "memory of a step")
    .flatMap((text, rank) => parseNeeds(text).map((need) => ({ ...need, rank })));
  const lacking = all.filter(({ bytes, capacity }) => bytes > capacity);
  return lacking.reduce<Shortage | undefined>(
    (worst, one) => worst === undefined || one.bytes / one.capacity > worst.bytes / worst.capacity ? one : worst,
    undefined,
  );
}

function parseNeeds(text: string): readonly MemoryNeed[] {
  return JSON.parse(text);
}

/** A step that does not fit, with functions that measure other settings. */
export interface Misfit {
  readonly shortage: Shortage;
  readonly numParameters: number;
  readonly worldSize: number;
  /** Samples that a rank computes in a step, in {@link microBatches} parts. */
  readonly samples: number;
  readonly microBatches: number;
  /** The number of ranks that would be enough, or the reason that more ranks do not help. */
  readonly ranks: string;
  /** Bytes that the shortage's memory must have where a rank computes in a number of parts. */
  readonly bytesIn: (microBatches: number) => Promise<number>;
}

/** The error of a step that does not fit, whose text describes the shortage, the same on every rank. */
export async function outOfMemoryError(misfit: Misfit): Promise<OutOfMemoryError> {
  const { shortage: { where, bytes, peakBytes, terms, capacity }, numParameters, worldSize, ranks } = misfit;
  const most = Object.entries(terms).filter(([, part]) => part > 0).sort(([, a], [, b]) => b - a)
    .map(([name, part]) => `${name} ${formatBytes(part)}`);
  const detail =
    `The model of ${countOf(numParameters, "parameter")} does not fit ${countOf(worldSize, "rank")}: a rank needs ` +
    `${formatBytes(peakBytes)} at once (${most.join(", ")}); ${ranks}${await adviseParts(misfit)}`;
  return new OutOfMemoryError(where, bytes, 0, capacity, detail);
}

/**
 * The fewest micro-batches that fit, or the bytes that single samples need; nothing where a rank computes sample by sample already.
 */
async function adviseParts({ samples, microBatches, shortage, bytesIn }: Misfit): Promise<string> {
  const parts = Array.from({ length: samples }, (_, i) => i + 1).filter((n) => n > microBatches && samples % n === 0);
  const last = parts.at(-1);
  if (last === undefined) return "";
  const least = await bytesIn(last);
  if (least > shortage.capacity) {
    return `; '--micro-batches ${last}', one sample at once, would still need ${formatBytes(least)}`;
  }
  let [first, enough, needed] = [0, parts.length - 1, least];
  while (first < enough) {
    const middle = Math.floor((first + enough) / 2);
    const bytes = await bytesIn(at(parts, middle, "number of parts"));
    if (bytes > shortage.capacity) first = middle + 1;
    else [enough, needed] = [middle, bytes];
  }
  const count = at(parts, enough, "number of parts");
  return `; '--micro-batches ${count}', ${countOf(samples / count, "sample")} at once, needs ${formatBytes(needed)}`;
}
