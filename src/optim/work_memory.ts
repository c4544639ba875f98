/**
 * Work memory of an optimizer's step. Rules plan what they need for each bucket before the step writes anything. Buckets are updated in
 * turn, in the same memory. So a step allocates once on each device, as much as its largest bucket needs, and a step for which there is
 * no memory changes nothing.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { InternalError } from "../errors.ts";

/** The allocator's alignment, so that the plan takes as many bytes as single allocations would. */
const ALIGNMENT = 256;

/** Planned memory. */
export class WorkBuffer {
  readonly #address: () => DevicePtr;

  /** Use {@link WorkMemory.plan}. */
  constructor(address: () => DevicePtr) {
    this.#address = address;
  }

  /** Its address, from {@link WorkMemory.allocate} on. */
  get ptr(): DevicePtr {
    return this.#address();
  }
}

/** The work memory of one step. */
export class WorkMemory implements Disposable {
  /** Bytes that are planned on each device; while a use of {@link inTurn} is planned, up to its end. */
  #ends: ReadonlyMap<Device, number> = new Map();
  readonly #buffers = new Map<Device, Buffer>();

  /** Plans memory on a device. It is uninitialized: earlier uses may have written it. */
  plan(device: Device, byteLength: number): WorkBuffer {
    const begin = this.#ends.get(device) ?? 0;
    const bytes = Math.max(ALIGNMENT, Math.ceil(byteLength / ALIGNMENT) * ALIGNMENT);
    this.#ends = new Map([...this.#ends, [device, begin + bytes]]);
    return new WorkBuffer(() => {
      const buffer = this.#buffers.get(device);
      if (buffer === undefined) throw new InternalError("work memory is used before it is allocated");
      return devicePtr(buffer.ptr + begin);
    });
  }

  /** Plans uses that follow each other: they have the same memory, as large as the largest use needs. */
  inTurn<T>(uses: readonly (() => T)[]): readonly T[] {
    const begins = this.#ends;
    const ends = new Map(begins);
    const planned = uses.map((use) => {
      this.#ends = begins;
      const result = use();
      for (const [device, end] of this.#ends) ends.set(device, Math.max(end, ends.get(device) ?? end));
      return result;
    });
    this.#ends = ends;
    return planned;
  }

  /**
   * Allocates all that was planned.
   *
   * @throws {OutOfMemoryError} if a device has not enough left
   */
  allocate(): void {
    for (const [device, byteLength] of this.#ends) {
      this.#buffers.set(device, Buffer.allocate(device, byteLength, "work memory of an optimizer step", "optimizer"));
    }
  }

  /** Frees the memory. */
  [Symbol.dispose](): void {
    for (const buffer of this.#buffers.values()) buffer.release();
    this.#buffers.clear();
  }
}
