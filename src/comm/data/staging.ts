/**
 * Staging buffers: memory of which each rank has a slot that it alone writes and all read. On its way from device to
 * device, data goes through them chunk by chunk.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Allocator } from "../../device/allocator.ts";
import { type Device, type DevicePtr, devicePtr } from "../../device/device.ts";

/** The slots of a group. Offsets are bytes from a slot's begin. */
export interface StagingBuffer {
  /** Allocates what views of some ranks need, of so many bytes each: it fails before a round begins, and not in its middle. */
  reserve(ranks: Iterable<number>, byteLength: number): void;
  /** Writes device memory into this rank's slot. */
  put(offset: number, src: DevicePtr, byteLength: number): void;
  /** A device address where bytes of a rank's slot can be read; valid until the next `view` of that rank. */
  view(rank: number, offset: number, byteLength: number): DevicePtr;
  /** Copies from a rank's slot to device memory. */
  take(dst: DevicePtr, rank: number, offset: number, byteLength: number): void;
}

/** Slots that lie in device memory from `begin`, one after another: nothing is copied to be read. */
export function mappedStaging(device: Device, begin: DevicePtr, slotBytes: number, own: number): StagingBuffer {
  const view = (rank: number, offset: number): DevicePtr => devicePtr(begin + rank * slotBytes + offset);
  return {
    view,
    reserve: () => {},
    put: (offset, src, byteLength) => device.copy(view(own, offset), src, byteLength),
    take: (dst, rank, offset, byteLength) => device.copy(dst, view(rank, offset), byteLength),
  };
}

/** Slots outside device memory: what a kernel should read is copied into `scratch` first. */
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

/** Device memory that chunks of other ranks are copied into: a block a rank, as large as was needed so far. */
export class Scratch implements Disposable {
  readonly #allocator: Allocator;
  readonly #blocks: { readonly ptr: DevicePtr; readonly byteLength: number }[] = [];

  constructor(allocator: Allocator) {
    this.#allocator = allocator;
  }

  /** The block of a rank, with room for `byteLength` bytes; what was in it may be gone. */
  of(rank: number, byteLength: number): DevicePtr {
    const old = this.#blocks[rank];
    if (old !== undefined && old.byteLength >= byteLength) return old.ptr;
    if (old !== undefined) {
      this.#allocator.free(old.ptr);
      delete this.#blocks[rank]; // where memory runs out, the next call allocates again
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
