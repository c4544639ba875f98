/**
 * The memory of MPI's plane: chunks of other ranks' parts, in a block for each rank. Dry runs allocate the same.
 *
 * @module
 */
import { at } from "../../../at.ts";
import type { Device } from "../../../device/device.ts";
import type { OpenPlaneMemory, PlaneMemory, PlaneMemoryOptions, PlaneRanks } from "../plane_memory.ts";
import { ALIGNMENT, evenSlices, type StagingOptions } from "../sizes.ts";
import { Scratch } from "../staging.ts";

/** All-reduces of at most this many bytes take one round, in which each rank sums all elements. */
export const ONE_ROUND_BYTES = 8192;
/** Rounds of a reduction that are under way at a time: the network has work while a kernel of this rank runs for long. */
export const ROUNDS_TOGETHER = 8;
const MOST_CHUNK_BYTES: number = 2 ** 20;
const MOST_STAGING_BYTES: number = 2 ** 26;

/** Bytes that a rank sends to one other rank in a round of a reduction. */
export function chunkBytesOf(
  size: number,
  { chunkBytes = MOST_CHUNK_BYTES, stagingBytes = MOST_STAGING_BYTES }: StagingOptions,
): number {
  if (size === 1) return 2 ** 52;
  const room = Math.floor(Math.min(chunkBytes, stagingBytes / (ROUNDS_TOGETHER * (size - 1))) / ALIGNMENT) * ALIGNMENT;
  return Math.max(room, ALIGNMENT);
}

/** The memory of ranks that exchange by MPI. */
export const openMpiMemory: OpenPlaneMemory = (
  { rank, size }: Pick<PlaneRanks, "rank" | "size">,
  device: Device,
  options: PlaneMemoryOptions,
) => {
  const { allocator } = device;
  const scratch = new Scratch(allocator);
  const reserve = (length: number, longest: number, unit: number): void => {
    const step = Math.floor(chunkBytesOf(size, options) / unit);
    const rounds = Math.min(ROUNDS_TOGETHER, Math.ceil(longest / step), Math.ceil(length / step));
    for (let round = 0; round < rounds; round++) {
      for (let peer = 0; peer < size; peer++) {
        if (peer !== rank) scratch.of(round * size + peer, Math.min(step, length) * unit);
      }
    }
  };
  return {
    stagingBytes: 0,
    registersMemory: false,
    gatherMemory: () => undefined,
    openWindow: (byteLengths, owner) => allocator.allocate(at(byteLengths, rank, "part of rank"), owner, "parameters"),
    reduceScatter(length, dtype): boolean {
      reserve(length, length, dtype.byteLength);
      return true;
    },
    allReduce({ n, dtype: { byteLength: unit }, op }): void {
      if (op === "max") {
        const length = Math.min(n, Math.floor(chunkBytesOf(size, options) / unit));
        for (let peer = 0; peer < size; peer++) if (peer !== rank && n > 0) scratch.of(peer, length * unit);
      } else if (n * unit <= ONE_ROUND_BYTES) reserve(n, n, unit);
      else reserve(at(evenSlices(n, size), rank, "slice of rank").length, n, unit);
    },
    split: (ranks): PlaneMemory => openMpiMemory(ranks, device, options),
    [Symbol.dispose]: () => scratch[Symbol.dispose](),
  };
};
