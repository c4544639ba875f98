/**
 * The memory of one optimizer state of a flat shard. It lies on the shard's device, or in a pool. A state in a pool is copied to the
 * device for each update, and back after it.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross, type MemoryPlace } from "../device/offload.ts";
import type { StatePool } from "../device/state_pool.ts";
import { float32 } from "../dtype.ts";
import { UseAfterDisposeError } from "../errors.ts";

/** One state: float32 elements, which are zeros at first. */
export class StateMemory {
  readonly #device: Device;
  readonly #pool: StatePool | undefined;
  readonly #byteLength: number;
  readonly #owner: string;
  /** Address of the state in the pool; undefined without a pool. */
  readonly #resting: DevicePtr | undefined;
  #isReleased = false;
  /** The state's memory on the device. Without a pool it is always there, with a pool only during an update. */
  #present: Buffer | undefined;

  /**
   * Allocates the state.
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

  /** The device or pool that the state lies in between updates. */
  get holder(): MemoryPlace["device"] {
    return this.#pool ?? this.#device;
  }

  /** The place of an element of the state between updates. */
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

  /** Copies the state to the device, if it lies in a pool. @returns its address there until {@link endUpdate} */
  beginUpdate(): DevicePtr {
    const { ptr } = this.#attach();
    if (this.#pool !== undefined) copyAcross({ device: this.#device, ptr }, this.placeOf(0), this.#byteLength);
    return ptr;
  }

  /** Copies the state back to its pool, if it lies in one, and frees the memory on the device. */
  endUpdate(): void {
    if (this.#pool === undefined || this.#present === undefined) return;
    try {
      copyAcross(this.placeOf(0), { device: this.#device, ptr: this.#present.ptr }, this.#byteLength);
    } finally {
      this.abandonUpdate();
    }
  }

  /** Frees the memory that {@link beginUpdate} took, if {@link endUpdate} does not follow. The pool keeps the values from before. */
  abandonUpdate(): void {
    if (this.#pool === undefined) return;
    this.#present?.release();
    this.#present = undefined;
  }

  /** Frees the state. */
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
