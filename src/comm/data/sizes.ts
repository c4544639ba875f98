/**
 * Sizes of staging memory and their division: shared by the real data planes and the dry one.
 *
 * @module
 */
import type { Allocator, MemoryKind } from "../../device/allocator.ts";
import type { DevicePtr } from "../../device/device.ts";
import { ArgumentError } from "../../errors.ts";
import { DEPTH } from "../control/counters.ts";
import type { ElementRange } from "../data_plane.ts";

/** Alignment of everything in a slot, in bytes. */
export const ALIGNMENT = 256;
/** All-reduces of at most this many bytes take one round, in which each rank sums all elements. */
const ONE_SHOT_BYTES = 8192;

/** Size of staging memory and of its chunks. */
export interface StagingOptions {
  /**
   * Staging bytes of all ranks together. Default: 2 MiB for each pair of ranks, at most 64 MiB, between processes; 8 MiB
   * between Workers. Groups that are split off have as much for each rank.
   */
  readonly stagingBytes?: number | undefined;
  /** Largest number of bytes sent to one rank in one round; default 512 KiB. Results have the same bits for all values. */
  readonly chunkBytes?: number | undefined;
}

/** Bytes of each rank's slot in the first group. */
export function slotBytesOf(kind: "shm" | "loopback", size: number, { stagingBytes }: StagingOptions): number {
  if (size === 1) return 0;
  // One full chunk for every pair of ranks in each part: a reduction would not touch more.
  const most = kind === "shm" ? Math.min(64 * 2 ** 20, 2 * 2 ** 20 * size ** 2) : 8 * 2 ** 20;
  const least = size ** 2 * DEPTH * ALIGNMENT;
  return floorTo((stagingBytes ?? Math.max(most, least)) / size, ALIGNMENT);
}

/** Division of a slot: DEPTH parts, each with a chunk for every rank. */
export interface SlotLayout {
  readonly slotBytes: number;
  readonly partBytes: number;
  readonly chunkBytes: number;
  /** {@link StagingOptions.chunkBytes}, which bounds the chunks; those of fewer ranks may be larger than these. */
  readonly mostChunkBytes: number;
}

/**
 * Divides slots.
 *
 * @throws {ArgumentError} if a slot is too small for chunks
 */
export function divideSlot(slotBytes: number, size: number, { chunkBytes = 512 * 1024 }: StagingOptions): SlotLayout {
  // A rank alone stages nothing: its sums are one chunk of any length.
  if (size === 1) return { slotBytes, partBytes: 0, chunkBytes: 2 ** 52, mostChunkBytes: chunkBytes };
  const partBytes = floorTo(slotBytes / DEPTH, ALIGNMENT);
  const chunk = Math.min(floorTo(partBytes / size, ALIGNMENT), floorTo(chunkBytes, ALIGNMENT));
  if (chunk > 0) return { slotBytes, partBytes, chunkBytes: chunk, mostChunkBytes: chunkBytes };
  throw new ArgumentError(
    `Cannot stage ${size} ranks with ${slotBytes} bytes a rank: 'stagingBytes' must be at least ` +
      `${size * size * DEPTH * ALIGNMENT}; raise or remove it`,
  );
}

/** Largest number of elements that an all-reduce of one round takes. */
export function oneShotLength({ chunkBytes }: SlotLayout, unit: number): number {
  return Math.floor(Math.min(ONE_SHOT_BYTES, chunkBytes) / unit);
}

/** Splits n elements over ranks as evenly as whole cache lines allow. */
export function evenSlices(n: number, size: number): readonly ElementRange[] {
  const length = Math.ceil(n / size / 64) * 64;
  return Array.from({ length: size }, (_, rank) => {
    const offset = Math.min(n, rank * length);
    return { offset, length: Math.min(length, n - offset) };
  });
}

/** Bytes in whole pages. */
export function roundUpToPage(byteLength: number, pageBytes: number): number {
  return Math.ceil(byteLength / pageBytes) * pageBytes;
}

/** Allocates device memory for a mapping: whole pages, aligned to a page; an ordinary block for 0 bytes. */
export function allocatePages(
  allocator: Allocator,
  byteLength: number,
  pageBytes: number,
  owner: string,
  kind: MemoryKind,
): DevicePtr {
  if (byteLength === 0) return allocator.allocate(0, owner, kind);
  return allocator.allocate(roundUpToPage(byteLength, pageBytes), owner, kind, Math.max(ALIGNMENT, pageBytes));
}

function floorTo(value: number, multiple: number): number {
  return Math.floor(value / multiple) * multiple;
}
