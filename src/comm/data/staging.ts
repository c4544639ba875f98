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
  /** Writes device memory into this rank's slot. */
  put(offset: number, src: DevicePtr, byteLength: number): void;
  /** A device address where bytes of a rank's slot can be read; valid until the next `view` of that rank. */
  view(rank: number, offset: number, byteLength: number): DevicePtr;
  /** Copies from a rank's slot to device memory. */
  take(dst: DevicePtr, rank: number, offset: number, byteLength: number): void;
}

/** Slots that lie in device memory, one after another: nothing is copied to be read. */
export class MappedStaging implements StagingBuffer {
  readonly #device: Device;
  readonly #begin: DevicePtr;
  readonly #slotBytes: number;
  readonly #rank: number;

  /** @param begin where the slots of all ranks are mapped */
  constructor(device: Device, begin: DevicePtr, slotBytes: number, rank: number) {
    this.#device = device;
    this.#begin = begin;
    this.#slotBytes = slotBytes;
    this.#rank = rank;
  }

  put(offset: number, src: DevicePtr, byteLength: number): void {
    this.#device.copy(this.view(this.#rank, offset), src, byteLength);
  }

  view(rank: number, offset: number): DevicePtr {
    return devicePtr(this.#begin + rank * this.#slotBytes + offset);
  }

  take(dst: DevicePtr, rank: number, offset: number, byteLength: number): void {
    this.#device.copy(dst, this.view(rank, offset), byteLength);
  }
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
    if (old !== undefined) this.#allocator.free(old.ptr);
    const ptr = this.#allocator.allocate(byteLength, "staging", "staging");
    this.#blocks[rank] = { ptr, byteLength };
    return ptr;
  }

  [Symbol.dispose](): void {
    for (const block of this.#blocks) if (block !== undefined) this.#allocator.free(block.ptr);
    this.#blocks.length = 0;
  }
}

/** Slots outside device memory: what a kernel should read is copied into scratch first. */
export class CopiedStaging implements StagingBuffer, Disposable {
  readonly #device: Device;
  readonly #slots: readonly Uint8Array[];
  readonly #rank: number;
  readonly #scratch: Scratch;

  /** @param slots each rank's slot */
  constructor(device: Device, slots: readonly Uint8Array[], rank: number) {
    this.#device = device;
    this.#slots = slots;
    this.#rank = rank;
    this.#scratch = new Scratch(device.allocator);
  }

  put(offset: number, src: DevicePtr, byteLength: number): void {
    this.#device.copyOut(this.#bytes(this.#rank, offset, byteLength), src);
  }

  view(rank: number, offset: number, byteLength: number): DevicePtr {
    const place = this.#scratch.of(rank, byteLength);
    this.take(place, rank, offset, byteLength);
    return place;
  }

  take(dst: DevicePtr, rank: number, offset: number, byteLength: number): void {
    this.#device.copyIn(dst, this.#bytes(rank, offset, byteLength));
  }

  [Symbol.dispose](): void {
    this.#scratch[Symbol.dispose]();
  }

  #bytes(rank: number, offset: number, byteLength: number): Uint8Array {
    return at(this.#slots, rank, "slot of rank").subarray(offset, offset + byteLength);
  }
}
