/**
 * What the kernel tests stand on: kernels over a small memory of their own, arrays put in and read back, a generator of
 * test values, and a comparison that no NaN slips through.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, float32, int32, uint8 } from "../../src/dtype.ts";
import type { DType } from "../../src/dtype.ts";
import { devicePtr } from "../../src/device/device.ts";
import type { DevicePtr } from "../../src/device/device.ts";
import type { KernelTable } from "../../src/device/kernels.ts";
import { exactMath, wasmKernels } from "../../src/device/wasm/kernels.ts";
import type { ExactMath } from "../../src/device/kernels.ts";
import { instantiateKernels, loadKernelModule } from "../../wasm/mod.ts";
import type { KernelExports, KernelVariant } from "../../wasm/mod.ts";

/** The storage dtypes of kernels, with the relative error of one rounding. */
export const FLOATS: readonly { readonly dtype: DType; readonly epsilon: number }[] = [
  { dtype: float32, epsilon: 2 ** -24 },
  { dtype: bfloat16, epsilon: 2 ** -8 },
];

const PAGES = 2048;

/** Kernels with memory that is handed out and never taken back. */
export class Bed {
  readonly exports: KernelExports;
  readonly kernels: KernelTable;
  readonly math: ExactMath;
  readonly memory: WebAssembly.Memory;
  #next: number;
  #seed = 12345;

  private constructor(module: WebAssembly.Module) {
    this.memory = new WebAssembly.Memory({ initial: PAGES, maximum: PAGES });
    this.exports = instantiateKernels(module, this.memory);
    this.kernels = wasmKernels(this.exports, this.memory);
    this.math = exactMath(this.exports);
    this.#next = this.exports.heap_base() >>> 0;
  }

  /** A fresh memory with the kernels of a variant. */
  static async open(variant: KernelVariant = "strict"): Promise<Bed> {
    return new Bed(await loadKernelModule(variant));
  }

  /** Room for `n` elements, holding NaNs or other rubbish; aligned to the element and no more. */
  room(dtype: DType, n: number): DevicePtr {
    const unit = dtype.byteLength;
    const at = Math.ceil(this.#next / unit) * unit + unit;
    this.#next = at + n * unit;
    assert.ok(this.#next <= this.memory.buffer.byteLength, "the test bed's memory is too small");
    new Uint8Array(this.memory.buffer, at, n * unit).fill(0xff);
    return devicePtr(at);
  }

  /** Values rounded to the dtype and stored. */
  put(dtype: DType, values: ArrayLike<number>): DevicePtr {
    const at = this.room(dtype, values.length);
    if (dtype === bfloat16) {
      const floats = Float32Array.from(values);
      const bits = new Uint32Array(floats.buffer);
      const out = new Uint16Array(this.memory.buffer, at, values.length);
      for (let i = 0; i < out.length; i++) {
        const word = bits[i] ?? 0;
        const isNaN = (word & 0x7fffffff) > 0x7f800000;
        out[i] = isNaN ? 0x7fc0 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
      }
    } else if (dtype === float32) {
      new Float32Array(this.memory.buffer, at, values.length).set(values);
    } else if (dtype === int32) {
      new Int32Array(this.memory.buffer, at, values.length).set(values);
    } else if (dtype === uint8) {
      new Uint8Array(this.memory.buffer, at, values.length).set(values);
    } else {
      assert.fail(`the test bed puts no ${dtype.name}`);
    }
    return at;
  }

  /** Stored values. */
  get(dtype: DType, at: DevicePtr, n: number): number[] {
    if (dtype === float32) return Array.from(new Float32Array(this.memory.buffer, at, n));
    if (dtype === int32) return Array.from(new Int32Array(this.memory.buffer, at, n));
    if (dtype === uint8) return Array.from(new Uint8Array(this.memory.buffer, at, n));
    assert.equal(dtype, bfloat16);
    const bits = Uint32Array.from(new Uint16Array(this.memory.buffer, at, n), (half) => (half << 16) >>> 0);
    return Array.from(new Float32Array(bits.buffer));
  }

  /** Bytes of an array, for comparing bits. */
  bytes(dtype: DType, at: DevicePtr, n: number): number[] {
    return Array.from(new Uint8Array(this.memory.buffer, at, n * dtype.byteLength));
  }

  /** The next `n` test values, spread evenly over [low, high). */
  values(n: number, low = -1, high = 1): number[] {
    return Array.from({ length: n }, () => {
      this.#seed = (Math.imul(this.#seed, 1664525) + 1013904223) >>> 0;
      return low + (high - low) * (this.#seed / 2 ** 32);
    });
  }

  /** Test values put into memory, and what is stored. */
  random(dtype: DType, n: number, low = -1, high = 1): { at: DevicePtr; x: number[] } {
    const at = this.put(dtype, this.values(n, low, high));
    return { at, x: this.get(dtype, at, n) };
  }
}

/** An element that must be there. */
export function pick(list: ArrayLike<number>, i: number): number {
  const value = list[i];
  assert.ok(value !== undefined, `no element ${i} of ${list.length}`);
  return value;
}

/** Same length, and each within `relative * |expected| + absolute`; non-finite values must be the same. */
export function close(
  actual: readonly number[],
  expected: readonly number[],
  relative: number,
  absolute: number,
  what: string,
): void {
  assert.equal(actual.length, expected.length, what);
  for (let i = 0; i < actual.length; i++) {
    const a = pick(actual, i);
    const e = pick(expected, i);
    const fits = Number.isFinite(e) ? Math.abs(a - e) <= relative * Math.abs(e) + absolute : Object.is(a, e);
    assert.ok(fits, `${what}: element ${i} is ${a}, expected ${e}`);
  }
}

/** Sum of `f(i)` for i below n. */
export function sum(n: number, f: (i: number) => number): number {
  let total = 0;
  for (let i = 0; i < n; i++) total += f(i);
  return total;
}

/** Nearest float32. */
export const fround: (x: number) => number = Math.fround;
