/**
 * The module's parameter area, through which arrays of sizes reach the kernels, and checks of dtypes before a call.
 *
 * Its content is read by the very next kernel call and means nothing after it.
 *
 * @module
 */
import { bfloat16, float32 } from "../../dtype.ts";
import type { DType } from "../../dtype.ts";
import { DTypeError, InternalError } from "../../errors.ts";
import type { DevicePtr } from "../device.ts";

/** Most dims of a strided array. */
const MAX_DIMS = 8;
/** Words of the area. */
const CAPACITY = 4096;

/** Words that the next kernel call reads. */
export class Parameters {
  readonly #words: Int32Array;

  /**
   * @param memory the memory of the kernels
   * @param address where the area lies
   */
  constructor(memory: WebAssembly.Memory, address: number) {
    this.#words = new Int32Array(memory.buffer, address, CAPACITY);
  }

  /**
   * Writes a shape and the strides of two operands.
   *
   * @returns the number of dims
   * @throws {InternalError} if there are too many dims, or strides for another number of them
   */
  shape(shape: readonly number[], first: readonly number[], second: readonly number[]): number {
    const ndim = shape.length;
    if (ndim > MAX_DIMS || first.length !== ndim || second.length !== ndim) {
      throw new InternalError(
        `a strided kernel takes at most ${MAX_DIMS} dims and a stride for each: got ${ndim} dims, ` +
          `${first.length} and ${second.length} strides`,
      );
    }
    const words = this.#words;
    for (let d = 0; d < ndim; d++) {
      words[d] = shape[d] ?? 0;
      words[MAX_DIMS + d] = first[d] ?? 0;
      words[2 * MAX_DIMS + d] = second[d] ?? 0;
    }
    return ndim;
  }

  /**
   * Writes a list of addresses.
   *
   * @returns how many
   * @throws {InternalError} if there are none or too many
   */
  addresses(list: readonly DevicePtr[]): number {
    if (list.length === 0 || list.length > CAPACITY) {
      throw new InternalError(`a kernel takes 1 to ${CAPACITY} sources: got ${list.length}`);
    }
    for (let i = 0; i < list.length; i++) this.#words[i] = list[i] ?? 0;
    return list.length;
  }

  /** Writes single words. */
  words(...values: readonly number[]): void {
    for (let i = 0; i < values.length; i++) this.#words[i] = values[i] ?? 0;
  }
}

/**
 * The code of a floating-point dtype that kernels compute in.
 *
 * @param op the kernel, for the message
 * @throws {DTypeError} if it is neither float32 nor bfloat16
 */
export function floatCode(op: string, dtype: DType): number {
  if (dtype !== float32 && dtype !== bfloat16) {
    throw new DTypeError(op, "it computes in float32 and bfloat16 only", dtype.name);
  }
  return dtype.code;
}
