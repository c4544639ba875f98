/**
 * A rank's memory as a mapping with native addresses. Pages cost nothing until they are touched. The host reads and writes it
 * through views of a fixed size, as no runtime has a view of all of it.
 *
 * Invariant: nothing is read or written outside the mapping, nor after it was unmapped: a wrong address is an error.
 *
 * @module
 */
import { InternalError, UseAfterDisposeError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";
import type { NativeAddress } from "../../ffi/types.ts";
import type { DevicePtr } from "../device.ts";

/** Runtimes count each view as memory of that size that is in use, and leave garbage of as much before they collect it. */
const VIEW_BYTES = 2 ** 26;

export class NativeMemory {
  /** First address. */
  readonly begin: number;
  /** One past the last. */
  readonly end: number;
  readonly #posix: Posix;
  readonly #base: NativeAddress;
  /** Made when first needed. */
  readonly #views = new Map<number, Uint8Array>();
  #beforeUse: (() => void) | undefined;
  #isMapped = true;

  /** @throws {NativeError} if the system refuses the mapping */
  constructor(posix: Posix, byteLength: number) {
    this.#posix = posix;
    this.#base = posix.mapPrivate(byteLength);
    this.begin = posix.provider.numberOf(this.#base);
    this.end = this.begin + byteLength;
  }

  /** A mapping of the same size. */
  another(): NativeMemory {
    return new NativeMemory(this.#posix, this.end - this.begin);
  }

  /** An address, as C functions take it. */
  address(ptr: number): NativeAddress {
    return this.#posix.provider.offset(this.#base, ptr - this.begin);
  }

  /** Address of host bytes outside the mapping, valid while these are held. */
  addressOf(bytes: Uint8Array): number {
    return this.#posix.provider.numberOf(this.#posix.provider.addressOf(bytes));
  }

  /** A view that stays valid, for memory that the device keeps for itself. */
  viewOf(ptr: number, byteLength: number): ArrayBuffer {
    this.requireInside(ptr, byteLength);
    return this.#posix.provider.viewOf(this.address(ptr), byteLength);
  }

  /** Calls `wait` before the CPU reads or writes the memory, as another device may copy to it and from it. */
  waitBeforeUse(wait: () => void): void {
    this.#beforeUse = wait;
  }

  /**
   * Checks that the memory is mapped, and waits for copies of other devices. @throws {UseAfterDisposeError} if it is not mapped
   */
  requireMapped(): void {
    if (!this.#isMapped) throw new UseAfterDisposeError("Cannot use a CPU device after it was disposed");
    this.#beforeUse?.();
  }

  /** True if these bytes all lie in the mapping. */
  holds(ptr: number, byteLength: number): boolean {
    return ptr >= this.begin && ptr + byteLength <= this.end;
  }

  /** @throws {InternalError} if these bytes do not all lie in the mapping */
  requireInside(ptr: number, byteLength: number): void {
    this.requireMapped();
    if (this.holds(ptr, byteLength)) return;
    const memory = `memory lies in [${this.begin}, ${this.end})`;
    throw new InternalError(`Cannot copy ${byteLength} bytes at ${ptr}: ${memory}`);
  }

  copyIn(dst: DevicePtr, src: Uint8Array): void {
    let done = 0;
    for (const bytes of this.bytesInPlace(dst, src.byteLength)) {
      bytes.set(src.subarray(done, done += bytes.byteLength));
    }
  }

  copyOut(dst: Uint8Array, src: DevicePtr): void {
    let done = 0;
    for (const bytes of this.bytesInPlace(src, dst.byteLength)) {
      dst.set(bytes, done);
      done += bytes.byteLength;
    }
  }

  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void {
    this.requireInside(dst, byteLength);
    this.requireInside(src, byteLength);
    this.#posix.libc.symbols.memmove(this.address(dst), this.address(src), byteLength);
  }

  /** True while the memory is mapped. */
  get isMapped(): boolean {
    return this.#isMapped;
  }

  /** Unmaps the memory; views of it must not be used after. */
  unmap(): void {
    this.#isMapped = false;
    this.#views.clear();
    this.#posix.unmap(this.#base, this.end - this.begin);
  }

  #viewFrom(begin: number): Uint8Array {
    const made = this.#views.get(begin);
    if (made !== undefined) return made;
    const view = new Uint8Array(this.viewOf(begin, Math.min(VIEW_BYTES, this.end - begin)));
    this.#views.set(begin, view);
    return view;
  }

  /** The bytes from `ptr` on, view by view. */
  *bytesInPlace(ptr: DevicePtr, byteLength: number): Generator<Uint8Array> {
    this.requireInside(ptr, byteLength);
    for (let done = 0; done < byteLength;) {
      const offset = ptr + done - this.begin;
      const start = offset % VIEW_BYTES;
      const bytes = this.#viewFrom(this.begin + offset - start).subarray(start, start + byteLength - done);
      yield bytes;
      done += bytes.byteLength;
    }
  }
}
