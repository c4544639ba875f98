/**
 * Values of a quantized parameter that this rank holds. A block is quantized from all of its elements, while files give them in
 * slices that begin and end anywhere: elements of a block that is not complete wait in host memory.
 *
 * @module
 */
import { Buffer } from "../../device/buffer.ts";
import { convertElements } from "../../device/convert.ts";
import { devicePtr } from "../../device/device.ts";
import { float32 } from "../../dtype.ts";
import { InternalError } from "../../errors.ts";
import { asQuantized, bytesOf, type QuantizedDType } from "../../quantized.ts";
import type { Parameter } from "../../tensor/parameter.ts";
import { ownedPtr } from "../../tensor/write.ts";

/** Elements converted at once, unless a block has more. */
const PIECE = 1 << 18;

/** A block whose elements arrive in parts. */
interface Incomplete {
  readonly values: Float32Array<ArrayBuffer>;
  count: number;
}

const HELD: WeakMap<Parameter, HeldBlocks> = new WeakMap();

/** The blocks of one parameter. */
export class HeldBlocks {
  readonly #parameter: Parameter;
  readonly #dtype: QuantizedDType;
  readonly #incomplete = new Map<number, Incomplete>();

  /** Use {@link HeldBlocks.of}. */
  constructor(parameter: Parameter, dtype: QuantizedDType) {
    this.#parameter = parameter;
    this.#dtype = dtype;
  }

  /** The blocks of a parameter, always the same ones; undefined where it is not quantized. */
  static of(parameter: Parameter): HeldBlocks | undefined {
    const dtype = asQuantized(parameter.storage.flatShard.dtype);
    if (dtype === undefined) return undefined;
    const held = HELD.get(parameter) ?? new HeldBlocks(parameter, dtype);
    HELD.set(parameter, held);
    return held;
  }

  /** Drops elements of blocks that were never completed. */
  drop(): void {
    this.#incomplete.clear();
  }

  /** @throws {InternalError} if some elements of a block have come, and others have not */
  requireComplete(): void {
    if (this.#incomplete.size === 0) return;
    throw new InternalError(`some blocks of '${this.#parameter.fqn}' were written in part: ${this.#incomplete.size}`);
  }

  /** Takes elements, from `local` on among those that this rank keeps, each once. */
  write(local: number, values: Float32Array<ArrayBuffer>): void {
    const { blockElements: size } = this.#dtype;
    let done = 0;
    while (done < values.length) {
      const [at, left] = [local + done, values.length - done];
      const block = Math.floor(at / size);
      const length = this.#lengthOf(block);
      if (at === block * size && left >= length) {
        const many = Math.max(1, Math.min(Math.floor(left / size), Math.floor(PIECE / size)));
        const count = Math.min(left, length === size ? many * size : length);
        this.#quantize(block, values.subarray(done, done + count));
        done += count;
      } else {
        const count = Math.min(left, block * size + length - at);
        this.#keep(block, at - block * size, values.subarray(done, done + count));
        done += count;
      }
    }
  }

  /** Gives elements, from `local` on among those that this rank keeps: those that the quantized ones stand for. */
  read(local: number, values: Float32Array<ArrayBuffer>): void {
    const { blockElements: size } = this.#dtype;
    const { device } = this.#parameter.storage.flatShard;
    const first = Math.floor(local / size) * size;
    const end = Math.min(Math.ceil((local + values.length) / size) * size, this.#parameter.storage.shard.numel);
    using wide = Buffer.allocate(device, (end - first) * float32.byteLength, `values of '${this.#parameter.fqn}'`);
    const src = devicePtr(ownedPtr(this.#parameter) + bytesOf(this.#dtype, first));
    convertElements(device, { dstDtype: float32, srcDtype: this.#dtype, n: end - first, dst: wide.ptr, src });
    const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    device.copyOut(bytes, devicePtr(wide.ptr + (local - first) * float32.byteLength));
  }

  /** Elements of a block. */
  #lengthOf(block: number): number {
    const { blockElements: size } = this.#dtype;
    return Math.min(size, this.#parameter.storage.shard.numel - block * size);
  }

  #keep(block: number, from: number, values: Float32Array<ArrayBuffer>): void {
    const length = this.#lengthOf(block);
    const kept = this.#incomplete.get(block) ?? { values: new Float32Array(length), count: 0 };
    kept.values.set(values, from);
    kept.count += values.length;
    this.#incomplete.set(block, kept);
    if (kept.count < length) return;
    this.#incomplete.delete(block);
    this.#quantize(block, kept.values);
  }

  #quantize(block: number, values: Float32Array<ArrayBuffer>): void {
    const n = values.length;
    const { device } = this.#parameter.storage.flatShard;
    using wide = Buffer.allocate(device, n * float32.byteLength, `values of '${this.#parameter.fqn}'`);
    device.copyIn(wide.ptr, new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    const dst = devicePtr(ownedPtr(this.#parameter) + block * this.#dtype.blockBytes);
    convertElements(device, { dstDtype: this.#dtype, srcDtype: float32, n, dst, src: wide.ptr });
  }
}
