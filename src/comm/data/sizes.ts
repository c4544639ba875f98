/**
 * The sizes that data planes choose: by them the real ones take memory and divide it, and a dry one takes the same.
 *
 * @module
 */
import type { Allocator, MemoryKind } from "../../device/allocator.ts";
import type { DevicePtr } from "../../device/device.ts";
import { ArgumentError } from "../../errors.ts";
import { DEPTH } from "../control/counters.ts";
import type { ElementRange } from "../data_plane.ts";

/** Everything in a slot starts on a multiple of this many bytes. */
export const ALIGNMENT = 256;
/** All-reduces up to this size go in one round, each rank summing all of it. */
const ONE_SHOT_BYTES = 8192;

/** How much staging memory there is, and how it is divided. */
export interface StagingOptions {
  /**
   * Staging bytes of all ranks together. Default: 2 MiB for each pair of ranks, at most 64 MiB, between processes; 8 MiB
   * between Workers. Groups that are split off have as much a rank.
   */
  readonly stagingBytes?: number | undefined;
  /** Most bytes that go to one rank in one round; default 512 KiB. No bit of a result depends on it. */
  readonly chunkBytes?: number | undefined;
}

/** Bytes of each rank's slot in the first group. */
export function slotBytesOf(kind: "shm" | "loopback", size: number, { stagingBytes }: StagingOptions): number {
  if (size === 1) return 0;
  // A whole chunk for every pair of ranks, in each part: more would not be touched by a reduction.
  const most = kind === "shm" ? Math.min(64 * 2 ** 20, 2 * 2 ** 20 * size ** 2) : 8 * 2 ** 20;
  const least = size ** 2 * DEPTH * ALIGNMENT;
  return floorTo((stagingBytes ?? Math.max(most, least)) / size, ALIGNMENT);
}

/** How a slot is divided: DEPTH parts, each with a chunk for every rank. */
export interface SlotLayout {
  readonly slotBytes: number;
  readonly partBytes: number;
  readonly chunkBytes: number;
}

/**
 * Divides slots.
 *
 * @throws {ArgumentError} if there is no room for a chunk
 */
export function divideSlot(slotBytes: number, size: number, { chunkBytes = 512 * 1024 }: StagingOptions): SlotLayout {
  // A rank alone stages nothing: whatever it sums is one chunk.
  if (size === 1) return { slotBytes, partBytes: 0, chunkBytes: 2 ** 52 };
  const partBytes = floorTo(slotBytes / DEPTH, ALIGNMENT);
  const chunk = Math.min(floorTo(partBytes / size, ALIGNMENT), floorTo(chunkBytes, ALIGNMENT));
  if (chunk > 0) return { slotBytes, partBytes, chunkBytes: chunk };
  throw new ArgumentError(
    `Cannot stage ${size} ranks with ${slotBytes} bytes a rank: 'stagingBytes' must be at least ` +
      `${size * size * DEPTH * ALIGNMENT}`,
  );
}

/** Elements of an all-reduce that go in one round. */
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

/** Device memory for a mapping: whole pages, on a page's boundary; an ordinary block for no bytes. */
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
