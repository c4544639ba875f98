/**
 * Numbers that vary from step to step and that enqueued work reads: divide factors, loss scales. The host sets them. All scalars
 * of a table are copied to the device together, when one of them is used next, or by {@link DeviceScalars.flush}. Captured work
 * uses them without a copy: set and flush them before the launch.
 *
 * @module
 */
import { InternalError } from "../errors.ts";
import { float32 } from "../dtype.ts";
import { Buffer } from "./buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "./device.ts";

/** Scalars of one table: as many as fit in the allocator's smallest block. */
const CAPACITY = 64;

/** Scalars that lie together in device memory. */
class ScalarTable {
  /** Memory of the scalars; undefined while there are none. */
  buffer: Buffer | undefined;
  readonly values: Float32Array<ArrayBuffer> = new Float32Array(CAPACITY);
  readonly free: number[] = Array.from({ length: CAPACITY }, (_, i) => CAPACITY - 1 - i);
  /** True if device memory holds the values. */
  isCurrent = false;
}

/** Copies a table to the device, unless the device has its values. */
function flush(device: Device, table: ScalarTable): void {
  if (table.buffer === undefined || table.isCurrent) return;
  device.copyIn(table.buffer.ptr, new Uint8Array(table.values.buffer));
  table.isCurrent = true;
}

/** A float32 number in device memory. */
export class DeviceScalar implements Disposable {
  readonly #device: Device;
  readonly #table: ScalarTable;
  readonly #index: number;

  /** Use {@link DeviceScalars}. */
  constructor(device: Device, table: ScalarTable, index: number) {
    this.#device = device;
    this.#table = table;
    this.#index = index;
  }

  /** The value, which work enqueued from now on reads. */
  get value(): number {
    const value = this.#table.values[this.#index];
    if (value === undefined) throw new InternalError(`no scalar ${this.#index}`);
    return value;
  }

  set value(value: number) {
    if (this.value === Math.fround(value)) return;
    this.#device.traits.hostWork.refuse("a number that the card reads is changed in it; set it before");
    this.#table.isCurrent = false;
    this.#table.values[this.#index] = value;
  }

  /**
   * Enqueues a copy of the value to the device on the current stream, if a scalar of the table was set since the last copy. Captured
   * work makes no copy.
   */
  flush(): void {
    if (!this.#device.traits.hostWork.isCapturing) flush(this.#device, this.#table);
  }

  /** Address of the scalar, after a {@link flush}. */
  get ptr(): DevicePtr {
    const { buffer } = this.#table;
    if (buffer === undefined) throw new InternalError("a scalar is used after it was disposed");
    this.flush();
    return devicePtr(buffer.ptr + this.#index * float32.byteLength);
  }

  /** Frees its place in the table. */
  [Symbol.dispose](): void {
    const table = this.#table;
    table.free.push(this.#index);
    if (table.free.length < CAPACITY) return;
    table.buffer?.release();
    table.buffer = undefined;
    table.isCurrent = false;
  }
}

/** The scalars of one device. */
export class DeviceScalars {
  readonly #device: Device;
  readonly #tables: ScalarTable[] = [];

  /** No scalars, and no memory yet. */
  constructor(device: Device) {
    this.#device = device;
  }

  /** Enqueues copies of all tables with values that were set since their last copy. */
  flush(): void {
    for (const table of this.#tables) flush(this.#device, table);
  }

  /** Makes a scalar of that value; the caller disposes it. */
  make(value: number): DeviceScalar {
    this.#device.traits.hostWork.refuse("a number that the card reads is made in it; make it before");
    let table = this.#tables.find(({ free }) => free.length > 0);
    if (table === undefined) {
      table = new ScalarTable();
      this.#tables.push(table);
    }
    table.buffer ??= Buffer.allocate(this.#device, table.values.byteLength, "device scalars");
    const index = table.free.pop();
    if (index === undefined) throw new InternalError("a table of scalars without a place");
    const scalar = new DeviceScalar(this.#device, table, index);
    scalar.value = value;
    return scalar;
  }
}
