/**
 * Staging buffers: memory with a slot for each rank, which that rank alone writes and all ranks read. Data moves through
 * them from device to device, chunk by chunk.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Allocator } from "../../device/allocator.ts";
import { type Device, type DevicePtr, devicePtr } from "../../device/device.ts";

/** The slots of a group. Offsets are bytes from the beginning of a slot. */
export interface StagingBuffer {
  /**
   * Allocates memory for views of some ranks, `byteLength` bytes each, so that running out of memory fails before a round begins.
   */
  reserve(ranks: Iterable<number>, byteLength: number): void;
  /** Writes device memory into this rank's slot. */
  put(offset: number, src: DevicePtr, byteLength: number): void;
  /** Device address of bytes in a rank's slot; valid until the next `view` of that rank. */
  view(rank: number, offset: number, byteLength: number): DevicePtr;
  /** Copies from a rank's slot to device memory. */
  take(dst: DevicePtr, rank: number, offset: number, byteLength: number): void;
}

/** Slots in device memory from `begin`, in rank order: views need no copy. */
export function mappedStaging(device: Device, begin: DevicePtr, slotBytes: number, own: number): StagingBuffer {
  const view = (rank: number, offset: number): DevicePtr => devicePtr(begin + rank * slotBytes + offset);
  return {
    view,
    reserve: () => {},
    put: (offset, src, byteLength) => device.copy(view(own, offset), src, byteLength),
    take: (dst, rank, offset, byteLength) => device.copy(dst, view(rank, offset), byteLength),
  };
}

/** Slots outside device memory: a view copies its bytes into `scratch` first. */
export function copiedStaging(
  device: Device,
  slots: readonly Uint8Array[],
  own: number,
  scratch: Scratch,
): StagingBuffer {
  const bytes = (rank: number, offset: number, byteLength: number): Uint8Array =>
    at(slots, rank, "slot of rank").subarray(offset, offset + byteLength);
  return {
    reserve(ranks, byteLength): void {
      for (const rank of ranks) scratch.of(rank, byteLength);
    },
    put: (offset, src, byteLength) => device.copyOut(bytes(own, offset, byteLength), src),
    take: (dst, rank, offset, byteLength) => device.copyIn(dst, bytes(rank, offset, byteLength)),
    view(rank, offset, byteLength): DevicePtr {
      const place = scratch.of(rank, byteLength);
      device.copyIn(place, bytes(rank, offset, byteLength));
      return place;
    },
  };
}

/** Device memory for copies of other ranks' chunks: a block for each rank, of the largest size that was needed so far. */
export class Scratch implements Disposable {
  readonly #allocator: Allocator;
  readonly #blocks: { readonly ptr: DevicePtr; readonly byteLength: number }[] = [];

  constructor(allocator: Allocator) {
    this.#allocator = allocator;
  }

  /** The block of a rank, of at least `byteLength` bytes; it may lose its contents. */
  of(rank: number, byteLength: number): DevicePtr {
    const old = this.#blocks[rank];
    if (old !== undefined && old.byteLength >= byteLength) return old.ptr;
    if (old !== undefined) {
      this.#allocator.free(old.ptr);
      delete this.#blocks[rank]; // if memory runs out now, the next call allocates again
    }
    const ptr = this.#allocator.allocate(byteLength, "staging", "staging");
    this.#blocks[rank] = { ptr, byteLength };
    return ptr;
  }

  [Symbol.dispose](): void {
    for (const block of this.#blocks) if (block !== undefined) this.#allocator.free(block.ptr);
    this.#blocks.length = 0;
  }
}
