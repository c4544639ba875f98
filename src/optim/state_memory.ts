/**
 * The memory of one optimizer state of a flat shard: on the shard's device, or in a pool from which it comes to the device for each update
 * and goes back.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross, type MemoryPlace } from "../device/offload.ts";
import type { StatePool } from "../device/state_pool.ts";
import { float32 } from "../dtype.ts";
import { UseAfterDisposeError } from "../errors.ts";

/** A state: float32 elements, zeros at first. */
export class StateMemory {
  readonly #device: Device;
  readonly #pool: StatePool | undefined;
  readonly #byteLength: number;
  readonly #owner: string;
  /** The place in the pool where the state rests. */
  readonly #resting: DevicePtr | undefined;
  #isReleased = false;
  /** The state's memory on the device: always there without a pool, else only during an update. */
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
    try {
      const { ptr: dst } = this.#attach();
      device.kernels.fill({ dtype: float32, n: length, value: 0, dst });
      this.endUpdate();
    } catch (error) {
      this.release();
      throw error;
    }
  }

  /** What its memory belongs to between updates. */
  get holder(): MemoryPlace["device"] {
    return this.#pool ?? this.#device;
  }

  /** Where the state's elements lie between updates, from `element` on. */
  placeOf(element: number): MemoryPlace {
    if (this.#isReleased) {
      throw new UseAfterDisposeError(`Cannot use '${this.#owner}' after its optimizer was disposed`);
    }
    const offset = element * float32.byteLength;
    if (this.#pool === undefined || this.#resting === undefined) {
      return { device: this.#device, ptr: devicePtr(this.#attach().ptr + offset) };
    }
    return { device: this.#pool, ptr: devicePtr(this.#resting + offset) };
  }

  /** Brings the state to the device; gives its address until {@link endUpdate}. */
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
      this.abandonUpdate();
    }
  }

  /** Gives back the memory that {@link beginUpdate} took, where {@link endUpdate} does not follow: the pool keeps the values before. */
  abandonUpdate(): void {
    if (this.#pool === undefined) return;
    this.#present?.release();
    this.#present = undefined;
  }

  /** Gives its memory back. */
  release(): void {
    this.#isReleased = true;
    this.#present?.release();
    this.#present = undefined;
    if (this.#resting !== undefined) this.#pool?.allocator.free(this.#resting);
  }

  #attach(): Buffer {
    return this.#present ??= Buffer.allocate(this.#device, this.#byteLength, this.#owner, "optimizer");
  }
}
