/**
 * Shared pages in a rank's device memory: a shared file is mapped over pages of that memory, so kernels work on it in place. A
 * test proves on each device that this works.
 *
 * @module
 */
import type { MemoryKind } from "../../device/allocator.ts";
import { type Device, type DevicePtr, devicePtr } from "../../device/device.ts";
import { UnsupportedError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";
import type { NativeAddress } from "../../ffi/types.ts";
import { allocatePages, roundUpToPage } from "./sizes.ts";

export class DevicePages {
  readonly device: Device;
  readonly posix: Posix;
  readonly #base: NativeAddress;

  constructor(device: Device, posix: Posix) {
    const { hostBase } = device.traits;
    this.device = device;
    this.posix = posix;
    this.#base = hostBase === undefined || hostBase === "native"
      ? posix.provider.nullAddress
      : posix.provider.addressOf(hostBase);
  }

  /** Native address of device memory. @throws {UnsupportedError} if the device's memory cannot hold shared pages */
  native(ptr: DevicePtr): NativeAddress {
    if (this.device.traits.hostBase === undefined) {
      throw new UnsupportedError(`memory of ${this.device.name} does not lie in this process`);
    }
    return this.posix.provider.offset(this.#base, ptr);
  }

  /** Rounds up to whole pages of this host. */
  roundUp(byteLength: number): number {
    return roundUpToPage(byteLength, this.posix.pageBytes);
  }

  /**
   * Allocates device memory and maps whole pages of a shared file over it, from byte `begin`.
   *
   * @param block owner and kind of the memory
   * @param kept receives what restores private pages and frees the memory
   */
  mapIn(
    descriptor: number,
    byteLength: number,
    { owner, kind }: { readonly owner: string; readonly kind: MemoryKind },
    begin: number,
    kept: DisposableStack,
  ): DevicePtr {
    const ptr = allocatePages(this.device.allocator, byteLength, this.posix.pageBytes, owner, kind);
    kept.defer(() => this.device.allocator.free(ptr));
    if (byteLength === 0) return ptr;
    this.posix.mapSharedAt(this.native(ptr), descriptor, byteLength, begin);
    kept.defer(() => this.posix.mapPrivateAt(this.native(ptr), byteLength));
    return ptr;
  }

  /**
   * Proves that a shared file mapped over device memory and mapped natively is one memory, and that private pages can be restored.
   *
   * @param view the shared file, mapped natively
   * @param index a 32-bit word of the shared file that no other rank uses
   * @returns the reason why mapping fails; empty if it works
   */
  selfTest(descriptor: number, view: ArrayBuffer, index: number): string {
    const { pageBytes } = this.posix;
    using kept = new DisposableStack();
    try {
      const begin = Math.floor(index * 4 / pageBytes) * pageBytes;
      const ptr = this.mapIn(descriptor, pageBytes, { owner: "self-test", kind: "staging" }, begin, kept);
      const words = new Int32Array(view, begin, pageBytes / 4);
      const word = index - begin / 4;
      const place = devicePtr(ptr + word * 4);
      const inside = new Int32Array(1);
      const write = (value: number): void => this.device.copyIn(place, new Uint8Array(Int32Array.of(value).buffer));
      write(0x5eed);
      const isSeenOutside = Atomics.load(words, word) === 0x5eed;
      Atomics.store(words, word, 0x7e57);
      this.device.copyOut(new Uint8Array(inside.buffer), place);
      const isSeenInside = inside[0] === 0x7e57;
      this.posix.mapPrivateAt(this.native(ptr), pageBytes);
      write(1);
      const isApart = Atomics.load(words, word) === 0x7e57;
      Atomics.store(words, word, 0);
      const not = (holds: boolean): string => holds ? "" : "not ";
      if (isSeenOutside && isSeenInside && isApart) return "";
      const seen = `${not(isSeenOutside)}seen outside, ${not(isSeenInside)}seen inside`;
      return `writes are ${seen}, ${not(isApart)}private after unmapping`;
    } catch (error) {
      return String(error);
    }
  }
}
