/**
 * The memory of one optimizer state of a run: on the run's device, or in a pool from which it comes to the device for each update
 * and goes back.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross, type MemoryPlace } from "../device/offload.ts";
import type { StatePool } from "../device/state_pool.ts";
import { float32 } from "../dtype.ts";

/** A state: float32 elements, zeros at first. */
export class StateMemory {
  readonly #device: Device;
  readonly #pool: StatePool | undefined;
  readonly #byteLength: number;
  readonly #owner: string;
  /** Where it rests in the pool. */
  readonly #resting: DevicePtr | undefined;
  /** Its memory on the device: always without a pool, else while it is updated. */
  #present: Buffer | undefined;

  /**
   * Takes memory.
   *
   * @throws {FileError} if the pool's file has no room
   */
  constructor(device: Device, pool: StatePool | undefined, length: number, owner: string) {
    this.#device = device;
    this.#pool = pool;
    this.#byteLength = length * float32.byteLength;
    this.#owner = owner;
    this.#resting = pool?.allocator.allocate(this.#byteLength, owner, "optimizer");
    const { ptr: dst } = this.#attach();
    device.kernels.fill({ dtype: float32, n: length, value: 0, dst });
    try {
      this.endUpdate();
    } catch (error) {
      this.release();
      throw error;
    }
  }

  /** Where its elements are, from `element` on, between updates. */
  placeOf(element: number): MemoryPlace {
    const offset = element * float32.byteLength;
    if (this.#pool === undefined || this.#resting === undefined) {
      return { device: this.#device, ptr: devicePtr(this.#attach().ptr + offset) };
    }
    return { device: this.#pool, ptr: devicePtr(this.#resting + offset) };
  }

  /** Its address on the device until {@link endUpdate}. */
  beginUpdate(): DevicePtr {
    const { ptr } = this.#attach();
    if (this.#pool !== undefined) copyAcross({ device: this.#device, ptr }, this.placeOf(0), this.#byteLength);
    return ptr;
  }

  /** Keeps what was written. */
  endUpdate(): void {
    if (this.#pool === undefined || this.#present === undefined) return;
    try {
      copyAcross(this.placeOf(0), { device: this.#device, ptr: this.#present.ptr }, this.#byteLength);
    } finally {
      this.#present.release();
      this.#present = undefined;
    }
  }

  /** Gives its memory back. */
  release(): void {
    this.#present?.release();
    this.#present = undefined;
    if (this.#resting !== undefined) this.#pool?.allocator.free(this.#resting);
  }

  #attach(): Buffer {
    return this.#present ??= Buffer.allocate(this.#device, this.#byteLength, this.#owner, "optimizer");
  }
}
