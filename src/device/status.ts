/**
 * A device's status record, which holds the first fault of its kernels, as kernels return nothing to the host. A kernel that
 * meets a fault writes it there, unless one is there, and writes zeros as its result, so that later work reads no garbage. The
 * host reads the record when an op returns or, where that would block (`isLate`), when values are read and when a backward
 * begins.
 *
 * @module
 */
import { ArgumentError, InternalError, NonFiniteError } from "../errors.ts";
import { type DevicePtr, devicePtr } from "./device.ts";
import { CONSTANTS } from "./kernels/signature.ts";

/** Byte offsets in the record, as `wasm/src/status.rs` lays it out; the gate follows. */
const RECORD = { kind: 0, place: 8, limit: 16, value: 24, gate: CONSTANTS.STATUS_BYTES } as const;

/** Bytes of a device's status area. */
export const STATUS_AREA_BYTES = 64;

/** A fault of a kernel. */
export interface Fault {
  /** The fault's number in {@link ERRORS}. */
  readonly kind: number;
  /** Index of the element. */
  readonly place: number;
  /** The bad value. */
  readonly value: number;
  /** Exclusive upper bound of the value. */
  readonly limit: number;
}

/** The error of each kind of fault, by the numbers of `wasm/src/status.rs`. */
const ERRORS: Readonly<Record<number, (fault: Fault) => Error>> = {
  1: ({ place, value, limit }) =>
    new ArgumentError(`Cannot look up id ${value} at place ${place}: the table has ${limit} rows`),
  2: ({ place, value, limit }) =>
    new ArgumentError(`Cannot take the cross-entropy of label ${value} at row ${place}: there are ${limit} classes`),
  3: ({ value, limit }) => new ArgumentError(`Cannot use position ${value}: positions must be in [0, ${limit})`),
  4: ({ value }) => new NonFiniteError(`Gradient norm is ${value}`),
  5: ({ place, value, limit }) =>
    new ArgumentError(`Cannot use index ${value} at place ${place}: indices must be in [0, ${limit})`),
};

/** The host's access to the record. */
export interface StatusMemory {
  /** The record's bytes, after all work enqueued so far. */
  read(): DataView;
  /** Removes the fault from the record. */
  clear(): void;
  /** Enqueues a read of the record, and returns a function that waits for the result; where `read` would block. */
  readLater?(): () => DataView;
  /** True while work is captured, so that nothing can be read. @default never */
  isCapturing?(): boolean;
}

/** The fault in a record; undefined if there is none. */
function faultIn(record: DataView): Fault | undefined {
  const kind = record.getUint32(RECORD.kind, true);
  if (kind === 0) return undefined;
  return {
    kind,
    place: record.getFloat64(RECORD.place, true),
    value: record.getFloat64(RECORD.value, true),
    limit: record.getFloat64(RECORD.limit, true),
  };
}

/** The status of one device. */
export class DeviceStatus {
  /** Address of the record. */
  readonly ptr: DevicePtr;
  /** True if the host reads the record late, because reading at once would block. */
  readonly isLate: boolean;
  readonly #memory: StatusMemory;
  /** Parameters whose updates the gate prevents while it is closed. */
  #gated: ReadonlySet<object> | undefined;
  /** Parameters whose updates a closed gate prevented before the gate was written for others. */
  readonly #closed = new Set<object>();
  /** Returns the fault that existed when the last backward began. */
  #atBackward: (() => Fault | undefined) | undefined;

  /** A status without a fault. @param ptr {@link STATUS_AREA_BYTES} of device memory, zeros */
  constructor(ptr: DevicePtr, isLate: boolean, memory: StatusMemory) {
    this.ptr = ptr;
    this.isLate = isLate;
    this.#memory = memory;
  }

  /** The present fault; undefined if there is none. Waits for the device. */
  read(): Fault | undefined {
    return faultIn(this.#memory.read());
  }

  /**
   * Throws the error of the present fault, once. Waits for the device.
   *
   * @throws {ArgumentError} if an id, a label, a position or an index was out of range
   * @throws {NonFiniteError} if a gradient norm that had to be finite was not
   */
  check(): void {
    const fault = this.read();
    if (fault === undefined) return;
    this.clear();
    const error = ERRORS[fault.kind];
    throw error === undefined ? new InternalError(`a kernel met a fault of unknown kind ${fault.kind}`) : error(fault);
  }

  /** Drops the present fault. */
  clear(): void {
    this.#atBackward = undefined;
    this.#memory.clear();
  }

  /**
   * The gate of the update of some parameters.
   *
   * @returns its address, if a norm of their gradients was taken since these changed; `closed` if it closed and was written for other
   * parameters since; undefined if no norm was taken
   */
  gateOf(parameters: readonly object[]): DevicePtr | "closed" | undefined {
    if (parameters.some((parameter) => this.#closed.has(parameter))) return "closed";
    return parameters.some((parameter) => this.#gated?.has(parameter)) ? this.#gatePtr : undefined;
  }

  /**
   * Makes a gate for the gradients of some parameters; the caller enqueues the kernel that writes it. If a gate was made since the
   * last backward, this waits for the device and remembers the parameters of a closed gate: their updates stay prevented.
   */
  makeGate(parameters: readonly object[]): DevicePtr {
    if (this.#gated !== undefined) {
      const isSet = this.#memory.read().getUint32(RECORD.gate, true) !== 0;
      if (isSet) { for (const parameter of this.#gated) this.#closed.add(parameter); }
    }
    this.#gated = new Set(parameters);
    return this.#gatePtr;
  }

  /**
   * Begins a backward, which changes gradients: drops the gate, and throws the fault that existed when the backward before began.
   * A fault of the latest forward may not have reached the host: the next backward throws it, and until then the gate prevents
   * its update.
   */
  beginBackward(): void {
    this.#gated = undefined;
    this.#closed.clear();
    if (!this.isLate) return;
    // The code that launches the graph reads the record after it.
    if (this.#memory.isCapturing?.() === true) return void (this.#atBackward = undefined);
    if (this.#atBackward?.() !== undefined) this.check();
    const record = this.#memory.readLater?.();
    const fault = record === undefined ? this.read() : undefined;
    this.#atBackward = () => record === undefined ? fault : faultIn(record());
  }

  get #gatePtr(): DevicePtr {
    return devicePtr(this.ptr + RECORD.gate);
  }
}
