/**
 * A device of plain TypeScript over a WebAssembly.Memory: just enough for transports, with naive loops that serve as
 * the reference for sums in rank order. Kernels that transports do not call are absent.
 *
 * @module
 */
import { Allocator } from "../../src/device/allocator.ts";
import type { Device, DevicePtr } from "../../src/device/device.ts";
import type { BinaryOp, ExactMath, KernelTable } from "../../src/device/kernels.ts";
import { bfloat16, int64 } from "../../src/dtype.ts";
import type { DType } from "../../src/dtype.ts";

const BITS = new Uint32Array(1);
const FLOAT = new Float32Array(BITS.buffer);

/** The upper half of a float32, rounded to nearest even. */
export function toBfloat16(value: number): number {
  FLOAT[0] = value;
  const bits = BITS[0] ?? 0;
  if (Number.isNaN(value)) return (bits >>> 16) | 0x40;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/** The value of bfloat16 bits. */
export function fromBfloat16(bits: number): number {
  BITS[0] = bits << 16;
  return FLOAT[0] ?? 0;
}

/** A device for tests. */
export class FakeDevice implements Device {
  readonly name = "cpu:0";
  readonly mathName = "fake";
  readonly memory: WebAssembly.Memory;
  readonly allocator: Allocator;
  readonly kernels: KernelTable;
  readonly math: ExactMath = Math;
  /** Called in the middle of every sum: injects a delay. */
  onSum: () => void = () => {};

  constructor(memoryBytes: number = 64 * 2 ** 20) {
    const pages = Math.ceil(memoryBytes / 65536);
    this.memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
    this.allocator = new Allocator(this.name, 65536, pages * 65536);
    const kernels = new FakeKernels(this.memory.buffer, () => this.onSum());
    if (!isKernelTable(kernels)) throw new Error("unreachable");
    this.kernels = kernels;
  }

  bytes(ptr: DevicePtr, byteLength: number): Uint8Array {
    return new Uint8Array(this.memory.buffer, ptr, byteLength);
  }

  copyIn(dst: DevicePtr, src: Uint8Array): void {
    this.bytes(dst, src.length).set(src);
  }

  copyOut(dst: Uint8Array, src: DevicePtr): void {
    dst.set(this.bytes(src, dst.length));
  }

  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void {
    new Uint8Array(this.memory.buffer).copyWithin(dst, src, src + byteLength);
  }

  synchronize(): void {}

  dispose(): void {}
}

/** The kernels that transports use. */
class FakeKernels {
  readonly #buffer: ArrayBufferLike;
  readonly #onSum: () => void;

  constructor(buffer: ArrayBufferLike, onSum: () => void) {
    this.#buffer = buffer;
    this.#onSum = onSum;
  }

  sumRanks(
    dstDtype: DType,
    dtype: DType,
    dst: DevicePtr,
    sources: readonly DevicePtr[],
    n: number,
    scale: number,
    accumulate: boolean,
  ): void {
    if (dtype === int64) {
      const to = new BigInt64Array(this.#buffer, dst, n);
      const from = sources.map((source) => new BigInt64Array(this.#buffer, source, n));
      for (let i = 0; i < n; i++) {
        let sum = accumulate ? to[i] ?? 0n : 0n;
        for (const source of from) sum += source[i] ?? 0n;
        to[i] = sum;
      }
      return;
    }
    for (let i = 0; i < n; i++) {
      let sum = this.#read(dtype, sources[0] ?? dst, i);
      for (let s = 1; s < sources.length; s++) sum = Math.fround(sum + this.#read(dtype, sources[s] ?? dst, i));
      sum = Math.fround(sum * Math.fround(scale));
      if (accumulate) sum = Math.fround(this.#read(dstDtype, dst, i) + sum);
      this.#write(dstDtype, dst, i, sum);
      if (i === n >> 1) this.#onSum();
    }
  }

  binary(
    op: BinaryOp,
    dtype: DType,
    dst: DevicePtr,
    a: DevicePtr,
    _aStrides: readonly number[],
    b: DevicePtr,
    _bStrides: readonly number[],
    shape: readonly number[],
  ): void {
    if (op !== "maximum") throw new Error(`no ${op} here`);
    for (let i = 0; i < (shape[0] ?? 0); i++) {
      this.#write(dtype, dst, i, Math.max(this.#read(dtype, a, i), this.#read(dtype, b, i)));
    }
  }

  #read(dtype: DType, ptr: DevicePtr, i: number): number {
    if (dtype === bfloat16) return fromBfloat16(new Uint16Array(this.#buffer, ptr + 2 * i, 1)[0] ?? 0);
    return new Float32Array(this.#buffer, ptr + 4 * i, 1)[0] ?? 0;
  }

  #write(dtype: DType, ptr: DevicePtr, i: number, value: number): void {
    if (dtype === bfloat16) new Uint16Array(this.#buffer, ptr + 2 * i, 1)[0] = toBfloat16(value);
    else new Float32Array(this.#buffer, ptr + 4 * i, 1)[0] = value;
  }
}

function isKernelTable(kernels: object): kernels is KernelTable {
  return "sumRanks" in kernels;
}
