/**
 * A device's status record: what went wrong in its kernels, which return nothing to the host. A kernel that meets a fault writes
 * it there if none is there yet, and zeros where its result would be, so that nothing after it is rubbish. The host reads the
 * record when an op returns, or, where that would be to wait (`isLate`), when values are read and when a backward begins.
 *
 * @module
 */
import { ArgumentError, InternalError, NonFiniteError } from "../errors.ts";
import { type DevicePtr, devicePtr } from "./device.ts";
import { CONSTANTS } from "./kernels/signature.ts";

/** Byte offsets in the record, as `wasm/src/status.rs` lays it out; the gate's word lies behind it. */
const RECORD = { kind: 0, place: 8, limit: 16, value: 24, gate: CONSTANTS.STATUS_BYTES } as const;

/** Bytes that a device keeps for its status. */
export const STATUS_AREA_BYTES = 64;

/** What a kernel met. */
export interface Fault {
  /** The fault's number in {@link ERRORS}. */
  readonly kind: number;
  /** Which element it was met at. */
  readonly place: number;
  /** What was met. */
  readonly value: number;
  /** What the value had to be below. */
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

/** How the host comes to the record. */
export interface StatusMemory {
  /** The record's bytes, after all work enqueued so far. */
  read(): DataView;
  /** Makes the record hold no fault. */
  clear(): void;
  /** Asks for the record as it is after all work enqueued so far, and gives what gets it later; where reading it is to wait. */
  readLater?(): () => DataView;
  /** Whether work is being captured, so that nothing can be read. @default never */
  isCapturing?(): boolean;
}

/** The fault that a record tells, if any. */
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
  /** Where kernels write faults. */
  readonly ptr: DevicePtr;
  /** Whether the host reads the record late, because reading at once would be to wait. */
  readonly isLate: boolean;
  readonly #memory: StatusMemory;
  /** The parameters whose updates the gate's word keeps back. */
  #gated: ReadonlySet<object> | undefined;
  /** Parameters whose updates a word kept back before it was written anew. */
  readonly #closed = new Set<object>();
  /** Gives the fault that was there when the last backward began. */
  #atBackward: (() => Fault | undefined) | undefined;

  /**
   * Begins without a fault.
   *
   * @param ptr {@link STATUS_AREA_BYTES} of device memory, zeros
   */
  constructor(ptr: DevicePtr, isLate: boolean, memory: StatusMemory) {
    this.ptr = ptr;
    this.isLate = isLate;
    this.#memory = memory;
  }

  /** The fault there is, if any. Waits for the device. */
  read(): Fault | undefined {
    return faultIn(this.#memory.read());
  }

  /**
   * Tells the fault there is, once. Waits for the device.
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

  /** Forgets the fault there is. */
  clear(): void {
    this.#atBackward = undefined;
    this.#memory.clear();
  }

  /**
   * What keeps back the update of some parameters: the word of a norm that was taken of gradients of theirs since they changed;
   * `closed` if such a word was set and has been written anew; undefined if there is none.
   */
  gateOf(parameters: readonly object[]): DevicePtr | "closed" | undefined {
    if (parameters.some((parameter) => this.#closed.has(parameter))) return "closed";
    return parameters.some((parameter) => this.#gated?.has(parameter)) ? this.#gatePtr : undefined;
  }

  /**
   * Makes a gate for the gradients of some parameters; the caller lets a kernel write the word. Waits for the device where a gate was
   * made since the last backward: what that one keeps back stays so.
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
   * A backward begins, which changes gradients: drops the gate, and tells the fault that was there when the one before began.
   * That of the forward just done may not have reached the host: it is told by the next one, and the gate keeps it from harm.
   */
  beginBackward(): void {
    this.#gated = undefined;
    this.#closed.clear();
    if (!this.isLate) return;
    // Who launches the graph reads the record after it.
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
