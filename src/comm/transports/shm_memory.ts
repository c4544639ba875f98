/**
 * Shared segments in this rank's memory: a file of the shared-memory directory mapped natively, and over pages of the
 * device's WebAssembly.Memory, so that kernels work on it where it lies. Whether the latter works is proven, not assumed.
 *
 * @module
 */
import type { NativeAddress } from "../../../ffi/types.ts";
import { devicePtr } from "../../device/device.ts";
import type { Device, DevicePtr } from "../../device/device.ts";
import { NativeError, OutOfMemoryError } from "../../errors.ts";
import { CopyAperture } from "./copy_aperture.ts";
import type { RunFiles } from "./shm_names.ts";
import type { Aperture } from "./medium.ts";
import type { WindowMemory } from "./window.ts";

/** A device whose memory is one WebAssembly.Memory that never grows. */
export interface WasmMemoryDevice extends Device {
  readonly memory: WebAssembly.Memory;
}

/** Whether a device's memory can hold shared pages. */
export function hasWasmMemory(device: Device): device is WasmMemoryDevice {
  return "memory" in device && device.memory instanceof WebAssembly.Memory;
}

/** Where segments of one rank go. */
export class SharedPages {
  readonly device: WasmMemoryDevice;
  readonly files: RunFiles;
  readonly #base: NativeAddress;

  constructor(device: WasmMemoryDevice, files: RunFiles) {
    this.device = device;
    this.files = files;
    this.#base = files.posix.provider.addressOf(device.memory.buffer);
  }

  /** The native address of device memory. */
  native(ptr: DevicePtr): NativeAddress {
    return this.files.posix.provider.offset(this.#base, ptr);
  }

  /** Rounds up to whole pages. */
  roundUp(byteLength: number): number {
    const { pageBytes } = this.files.posix;
    return Math.ceil(byteLength / pageBytes) * pageBytes;
  }

  /**
   * Makes a segment with all its room reserved, zero.
   *
   * @param owner what it is for
   * @returns its descriptor
   * @throws {OutOfMemoryError} naming the bytes asked for and free, and the container's option
   */
  create(name: string, byteLength: number, owner: string): number {
    const { posix, directory } = this.files;
    const { freeBytes, totalBytes } = posix.spaceAt(directory);
    const path = this.files.path(name);
    const outOfMemory = (free: number): OutOfMemoryError =>
      new OutOfMemoryError(
        directory,
        byteLength,
        totalBytes - free,
        totalBytes,
        `It was for ${owner}; ${free} bytes are free. Give a container more with '--shm-size', or the directory more with ` +
          `'mount -o remount,size=…'; a smaller 'apertureBytes' needs less`,
      );
    if (byteLength > freeBytes) throw outOfMemory(freeBytes);
    const descriptor = posix.createFile(path);
    try {
      posix.reserve(descriptor, byteLength);
    } catch (error) {
      posix.close(descriptor);
      posix.unlink(path);
      if (error instanceof NativeError && error.code === "ENOSPC") {
        throw outOfMemory(posix.spaceAt(directory).freeBytes);
      }
      throw error;
    }
    return descriptor;
  }

  /** Allocates device memory and maps a segment, from byte `begin`, over it. */
  mapIn(descriptor: number, byteLength: number, owner: string, begin = 0): DevicePtr {
    const { posix } = this.files;
    const ptr = this.device.allocator.allocate(byteLength, owner, "parameters", Math.max(256, posix.pageBytes));
    try {
      posix.mapSharedAt(this.native(ptr), descriptor, byteLength, begin);
    } catch (error) {
      this.device.allocator.free(ptr);
      throw error;
    }
    return ptr;
  }

  /** Puts private pages back, and gives the device memory back. */
  unmapIn(ptr: DevicePtr, byteLength: number): void {
    this.files.posix.mapPrivateAt(this.native(ptr), byteLength);
    this.device.allocator.free(ptr);
  }

  /**
   * Proves that a segment mapped over device memory and natively is one memory, and that private pages come back.
   *
   * @param segment a page of a shared segment
   * @param native the same page, mapped natively
   * @param word a word of it that no other rank uses
   * @returns why it does not work, or `undefined`
   */
  selfTest(descriptor: number, segment: Int32Array, word: number): string | undefined {
    const { posix } = this.files;
    const pageBytes = posix.pageBytes;
    let ptr: DevicePtr | undefined;
    try {
      ptr = this.mapIn(descriptor, pageBytes, "self-test");
      const mapped = new Int32Array(this.device.memory.buffer, ptr, pageBytes / 4);
      mapped[word] = 0x5eed;
      const there = Atomics.load(segment, word) === 0x5eed;
      Atomics.store(segment, word, 0x7e57);
      const back = mapped[word] === 0x7e57;
      posix.mapPrivateAt(this.native(ptr), pageBytes);
      mapped[word] = 1;
      const apart = Atomics.load(segment, word) === 0x7e57;
      if (there && back && apart) return undefined;
      return `writes ${there ? "are" : "are not"} seen outside, ${back ? "" : "not "}seen inside, ${
        apart ? "" : "not "
      }private after unmapping`;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    } finally {
      if (ptr !== undefined) this.device.allocator.free(ptr);
    }
  }
}

/** Slots that lie in device memory: nothing is copied to be read. */
export class MappedAperture implements Aperture {
  readonly slotBytes: number;
  readonly sharedBytes: number;
  readonly #pages: SharedPages;
  readonly #device: WasmMemoryDevice;
  readonly #ptr: DevicePtr;
  readonly #byteLength: number;
  readonly #rank: number;

  /** @param ptr where the slots of all ranks are mapped, one after another */
  constructor(pages: SharedPages, ptr: DevicePtr, byteLength: number, rank: number, size: number) {
    this.sharedBytes = byteLength;
    this.#pages = pages;
    this.#device = pages.device;
    this.#ptr = ptr;
    this.#byteLength = byteLength;
    this.#rank = rank;
    this.slotBytes = Math.floor(byteLength / size / 256) * 256;
  }

  put(offset: number, src: DevicePtr, byteLength: number): void {
    this.#device.copy(this.view(this.#rank, offset), src, byteLength);
  }

  putHost(offset: number, bytes: Uint8Array): void {
    this.#device.copyIn(this.view(this.#rank, offset), bytes);
  }

  view(rank: number, offset: number): DevicePtr {
    return devicePtr(this.#ptr + rank * this.slotBytes + offset);
  }

  take(dst: DevicePtr, rank: number, offset: number, byteLength: number): void {
    this.#device.copy(dst, this.view(rank, offset), byteLength);
  }

  takeHost(dst: Uint8Array, rank: number, offset: number): void {
    this.#device.copyOut(dst, this.view(rank, offset));
  }

  dispose(): void {
    this.#pages.unmapIn(this.#ptr, this.#byteLength);
  }
}

/** Maps an aperture and closes its descriptor. */
export function openAperture(
  pages: SharedPages,
  descriptor: number,
  byteLength: number,
  rank: number,
  size: number,
  mapped: boolean,
  begin = 0,
): Aperture {
  const { posix } = pages.files;
  try {
    if (size === 1) return new CopyAperture(pages.device, new Uint8Array(0), rank, size);
    if (mapped) {
      return new MappedAperture(
        pages,
        pages.mapIn(descriptor, byteLength, "shared aperture", begin),
        byteLength,
        rank,
        size,
      );
    }
    const address = posix.mapShared(descriptor, byteLength, "readWrite", begin);
    const slots = new Uint8Array(posix.provider.viewOf(address, byteLength));
    return new CopyAperture(pages.device, slots, rank, size, () => posix.unmap(address, byteLength));
  } finally {
    posix.close(descriptor);
  }
}

/** A part of a window as this rank sees it. */
export interface MappedPart {
  readonly address: NativeAddress;
  readonly byteLength: number;
}

/** A window of which every part is a segment: this rank's in its device memory, the peers' outside it. */
export class SegmentWindow implements WindowMemory {
  readonly pointer: DevicePtr;
  readonly #pages: SharedPages;
  readonly #rank: number;
  readonly #byteLengths: readonly number[];
  readonly #parts: readonly (MappedPart | undefined)[];
  readonly #isMapped: boolean;
  /** Where pages cannot be mapped over device memory: this rank's segment, natively, to copy to. */
  readonly #copyTo: MappedPart | undefined;

  /**
   * @param pointer this rank's part in device memory
   * @param isMapped whether those are shared pages, not private memory
   * @param parts the peers' segments; `undefined` for this rank and for empty parts
   */
  constructor(
    pages: SharedPages,
    rank: number,
    byteLengths: readonly number[],
    pointer: DevicePtr,
    isMapped: boolean,
    parts: readonly (MappedPart | undefined)[],
    copyTo: MappedPart | undefined,
  ) {
    this.#pages = pages;
    this.#rank = rank;
    this.#byteLengths = byteLengths;
    this.pointer = pointer;
    this.#isMapped = isMapped;
    this.#parts = parts;
    this.#copyTo = copyTo;
  }

  publish(): void {
    if (this.#copyTo === undefined) return;
    const { memcpy } = this.#pages.files.posix.libc.symbols;
    memcpy(this.#copyTo.address, this.#pages.native(this.pointer), this.#byteLengths[this.#rank] ?? 0);
  }

  fetch(dst: DevicePtr, rank: number): void {
    const byteLength = this.#byteLengths[rank] ?? 0;
    const part = this.#parts[rank];
    if (part === undefined) this.#pages.device.copy(dst, this.pointer, byteLength);
    else this.#pages.files.posix.libc.symbols.memcpy(this.#pages.native(dst), part.address, byteLength);
  }

  dispose(): void {
    const { posix } = this.#pages.files;
    for (const part of this.#parts) if (part !== undefined) posix.unmap(part.address, part.byteLength);
    const own = this.#byteLengths[this.#rank] ?? 0;
    if (this.#isMapped) this.#pages.unmapIn(this.pointer, this.#pages.roundUp(own));
    else this.#pages.device.allocator.free(this.pointer);
    if (this.#copyTo !== undefined) posix.unmap(this.#copyTo.address, this.#copyTo.byteLength);
  }
}
