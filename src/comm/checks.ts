/**
 * Checks of a collective's arguments, made before the call is announced: an error on one rank names that rank's own mistake.
 *
 * @module
 */
import { at } from "../at.ts";
import { COMPUTE_DTYPES, type DType, int64 } from "../dtype.ts";
import { ArgumentError, DTypeError } from "../errors.ts";
import type { ElementRange, ReduceScatterArgs } from "./data_plane.ts";

/** Refuses a `value` that is not a number of elements or bytes. */
export function checkCount(what: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 0) return;
  throw new ArgumentError(`${what} must be a non-negative integer, got ${value}`);
}

/** Refuses a `rank` that is not a rank of the group. */
export function checkRank(rank: number, size: number, what: string): void {
  if (Number.isInteger(rank) && rank >= 0 && rank < size) return;
  throw new ArgumentError(`${what} is rank ${rank}, which is not in a group of ${size}`);
}

/** Refuses lists without one entry for each rank. */
export function checkPerRank(list: readonly unknown[], size: number, what: string): void {
  if (list.length !== size) {
    throw new ArgumentError(`${what}: one for each of ${size} ranks is needed, got ${list.length}`);
  }
}

/** Refuses dtypes and factors that an all-reduce does not take. */
export function checkAllReduce(dtype: DType, op: "sum" | "max", isScaled: boolean, unit: string): void {
  if (!COMPUTE_DTYPES.includes(dtype) && !(dtype === int64 && op === "sum")) {
    throw new DTypeError(`allReduce ${op}`, "it takes float32, bfloat16, float16 and, as a sum, int64", dtype.name);
  }
  if (!isScaled || (op === "sum" && dtype !== int64)) return;
  throw new ArgumentError(`A scale needs a sum of floats, got ${op} of ${dtype.name} in '${unit}'`);
}

/** Refuses slices that overlap or do not ascend, and a `dst` that overlaps `src` without being this rank's own slice. */
export function checkReduceScatter(args: ReduceScatterArgs, rank: number, size: number, unit: string): void {
  const { src, dtype, slices, dst, dstDtype, accumulate } = args;
  checkPerRank(slices, size, `Slices of '${unit}'`);
  let end = 0;
  for (const { offset, length } of slices) {
    if (!(Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= end && length >= 0)) {
      const list = slices.map((slice: ElementRange) => `${slice.offset}+${slice.length}`).join(", ");
      throw new ArgumentError(`Slices of '${unit}' must ascend without overlap, got ${list}`);
    }
    end = offset + length;
  }
  const own = at(slices, rank, "slice of rank");
  const inPlace = dst === src + own.offset * dtype.byteLength && dstDtype === dtype && !accumulate;
  const cuts = dst < src + end * dtype.byteLength && src < dst + own.length * dstDtype.byteLength;
  if (own.length > 0 && cuts && !inPlace) {
    throw new ArgumentError(`'dst' of '${unit}' cuts into 'src', and is not the rank's own slice`);
  }
}

/** Refuses lists of ranks that do not ascend, or that lack this rank. */
export function checkParts(ranks: readonly number[], rank: number, size: number, name: string): void {
  for (const [i, member] of ranks.entries()) {
    checkRank(member, size, `Member ${i} of group '${name}'`);
    if (i > 0 && member <= at(ranks, i - 1, "member")) {
      throw new ArgumentError(`Ranks of group '${name}' must ascend, got [${ranks.join(", ")}]`);
    }
  }
  if (ranks.includes(rank)) return;
  throw new ArgumentError(`Rank ${rank} is not in its own part [${ranks.join(", ")}] of group '${name}'`);
}
