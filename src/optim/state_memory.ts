/**
 * The memory of one optimizer state of a flat shard: on the shard's device, or in a pool from which it comes to the device for each update
 * and goes back.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross, type MemoryPlace } from "../device/offload.ts";
import { ownerOf, type StatePool } from "../device/state_pool.ts";
import { type DType, float32 } from "../dtype.ts";
import { InternalError, UseAfterDisposeError } from "../errors.ts";

/** Bytes of zeros that are written to a pool at once. */
const PIECE_BYTES = 2 ** 20;

/** Memory of a pool. */
interface PooledMemory {
  readonly pool: StatePool;
  readonly holder: MemoryPlace["device"];
  readonly ptr: DevicePtr;
}

/** Memory of a state's elements, zeros at first. */
export class StateMemory {
  /** Bytes of all elements. */
  readonly byteLength: number;
  /** dtype of the elements. */
  readonly dtype: DType;
  readonly #owner: string;
  /** The place in the pool where the state rests, or its memory on the device. */
  readonly #resting: PooledMemory | Buffer;
  #isReleased = false;

  /**
   * Takes memory.
   *
   * @throws {OutOfMemoryError} if the device has none left
   * @throws {FileError} if the pool's file has no room
   */
  constructor(device: Device, pool: StatePool | undefined, length: number, owner: string, dtype: DType = float32) {
    this.byteLength = length * dtype.byteLength;
    this.dtype = dtype;
    this.#owner = owner;
    if (pool === undefined) {
      const buffer = Buffer.allocate(device, this.byteLength, owner, "optimizer");
      device.kernels.fill({ dtype, n: length, value: 0, dst: buffer.ptr });
      this.#resting = buffer;
      return;
    }
    const ptr = pool.allocator.allocate(this.byteLength, owner, "optimizer");
    this.#resting = { pool, holder: ownerOf(pool), ptr };
    try {
      // Zeros are written, and not only counted, because the disk may be full.
      const zeros = new Uint8Array(Math.min(PIECE_BYTES, this.byteLength));
      for (let done = 0; done < this.byteLength; done += zeros.byteLength) {
        pool.copyIn(devicePtr(ptr + done), zeros.subarray(0, this.byteLength - done));
      }
    } catch (error) {
      this.release();
      throw error;
    }
  }

  /** True if the state lies in a pool between updates, so that an update needs device memory for it. */
  get isPooled(): boolean {
    return !(this.#resting instanceof Buffer);
  }

  /** The owner of its memory between updates. */
  get holder(): MemoryPlace["device"] {
    return this.#resting instanceof Buffer ? this.#resting.device : this.#resting.holder;
  }

  /** The place of the state's elements between updates, from `element` on. */
  placeOf(element: number): MemoryPlace {
    if (this.#isReleased) {
      throw new UseAfterDisposeError(`Cannot use '${this.#owner}' after its optimizer was disposed`);
    }
    return { device: this.holder, ptr: devicePtr(this.#resting.ptr + element * this.dtype.byteLength) };
  }

  /** Gives its memory back. */
  release(): void {
    this.#isReleased = true;
    if (this.#resting instanceof Buffer) this.#resting.release();
    else this.#resting.pool.allocator.free(this.#resting.ptr);
  }
}

/** Buckets to be updated on a device. */
interface DeviceBuckets {
  readonly device: Device;
  readonly buckets: Iterable<
    { readonly bucket: { readonly states: ReadonlyMap<string, { readonly memory: StateMemory }> } }
  >;
}

/**
 * Device memory for states that lie in a pool between updates. The states of one bucket at a time are copied to the device, updated and
 * copied back. So for each name of a state, the memory is as large as the largest bucket's. It is allocated before the first update.
 */
export class UpdateRoom implements Disposable {
  readonly #buffers = new Map<Device, Map<string, Buffer>>();

  /**
   * Allocates the memory; none where no state is kept in a pool.
   *
   * @throws {OutOfMemoryError} if a device has none left
   */
  constructor(devices: readonly DeviceBuckets[]) {
    try {
      for (const { device, buckets } of devices) this.#allocate(device, buckets);
    } catch (error) {
      this[Symbol.dispose]();
      throw error;
    }
  }

  #allocate(device: Device, buckets: DeviceBuckets["buckets"]): void {
    let needed: Map<string, number> | undefined;
    for (const { bucket: { states } } of buckets) {
      for (const [name, { memory: { isPooled, byteLength } }] of states) {
        if (!isPooled) continue;
        needed ??= new Map<string, number>();
        needed.set(name, Math.max(byteLength, needed.get(name) ?? byteLength));
      }
    }
    if (needed === undefined) return;
    const buffers = new Map<string, Buffer>();
    this.#buffers.set(device, buffers);
    for (const [name, byteLength] of needed) {
      buffers.set(name, Buffer.allocate(device, byteLength, `optimizer ${name} in an update`, "optimizer"));
    }
  }

  /** Copies states that rest in a pool to the device. */
  begin(device: Device, states: ReadonlyMap<string, { readonly memory: StateMemory }>): void {
    if (this.#buffers.size === 0) return;
    for (const [name, { memory: state }] of states) {
      if (state.isPooled) copyAcross(this.#placeOf(device, name), state.placeOf(0), state.byteLength);
    }
  }

  /** The address on the device of a state, between {@link begin} and {@link end}. */
  ptrOf(device: Device, states: ReadonlyMap<string, { readonly memory: StateMemory }>, name: string): DevicePtr {
    const state = states.get(name)?.memory;
    if (state === undefined) throw new InternalError(`the optimizer has no state '${name}'`);
    return state.isPooled ? this.#placeOf(device, name).ptr : state.placeOf(0).ptr;
  }

  /** Copies states back to their pool, if they rest in one. */
  end(device: Device, states: ReadonlyMap<string, { readonly memory: StateMemory }>): void {
    if (this.#buffers.size === 0) return;
    for (const [name, { memory: state }] of states) {
      if (state.isPooled) copyAcross(state.placeOf(0), this.#placeOf(device, name), state.byteLength);
    }
  }

  /** Frees the memory. */
  [Symbol.dispose](): void {
    for (const buffers of this.#buffers.values()) for (const buffer of buffers.values()) buffer.release();
    this.#buffers.clear();
  }

  #placeOf(device: Device, name: string): MemoryPlace {
    const buffer = this.#buffers.get(device)?.get(name);
    if (buffer === undefined) throw new InternalError(`there is no room for the state '${name}'`);
    return { device, ptr: buffer.ptr };
  }
}
