/**
 * Staging memory that a device cannot compute on: another buffer, or a mapping outside its memory. What a kernel should
 * read is copied into the device's memory first.
 *
 * @module
 */
import type { Device, DevicePtr } from "../../device/device.ts";
import type { Aperture } from "./medium.ts";

/** Slots outside device memory: what a kernel should read is copied into private scratch first. */
export class CopyAperture implements Aperture {
  readonly slotBytes: number;
  readonly sharedBytes = 0;
  readonly #device: Device;
  readonly #slots: Uint8Array;
  readonly #rank: number;
  readonly #release: () => void;
  /** Per rank: scratch and its bytes, made when first needed. */
  readonly #scratch: { readonly ptr: DevicePtr; readonly byteLength: number }[] = [];

  /**
   * @param slots the slots of all ranks, one after another
   * @param rank whose slot is written
   * @param release gives the slots' memory back; nothing to do unless given
   */
  constructor(device: Device, slots: Uint8Array, rank: number, size: number, release: () => void = () => {}) {
    this.#release = release;
    this.#device = device;
    this.#slots = slots;
    this.#rank = rank;
    this.slotBytes = Math.floor(slots.length / size / 256) * 256;
  }

  put(offset: number, src: DevicePtr, byteLength: number): void {
    this.#device.copyOut(this.#bytes(this.#rank, offset, byteLength), src);
  }

  putHost(offset: number, bytes: Uint8Array): void {
    this.#bytes(this.#rank, offset, bytes.length).set(bytes);
  }

  view(rank: number, offset: number, byteLength: number): DevicePtr {
    let scratch = this.#scratch[rank];
    if (scratch === undefined || scratch.byteLength < byteLength) {
      if (scratch !== undefined) this.#device.allocator.free(scratch.ptr);
      scratch = { ptr: this.#device.allocator.allocate(byteLength, "staging"), byteLength };
      this.#scratch[rank] = scratch;
    }
    this.#device.copyIn(scratch.ptr, this.#bytes(rank, offset, byteLength));
    return scratch.ptr;
  }

  take(dst: DevicePtr, rank: number, offset: number, byteLength: number): void {
    this.#device.copyIn(dst, this.#bytes(rank, offset, byteLength));
  }

  takeHost(dst: Uint8Array, rank: number, offset: number): void {
    dst.set(this.#bytes(rank, offset, dst.length));
  }

  dispose(): void {
    for (const scratch of this.#scratch) if (scratch !== undefined) this.#device.allocator.free(scratch.ptr);
    this.#scratch.length = 0;
    this.#release();
  }

  #bytes(rank: number, offset: number, byteLength: number): Uint8Array {
    const begin = rank * this.slotBytes + offset;
    return this.#slots.subarray(begin, begin + byteLength);
  }
}
