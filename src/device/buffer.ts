/**
 * Ownership of device memory by counted references: the last `release` frees it. A buffer may also have no memory for a while (a
 * parameter on no device yet, or a resharded unit); its references stay valid when memory is allocated again.
 *
 * @module
 */
import { InternalError, UseAfterDisposeError } from "../errors.ts";
import type { Allocator, MemoryKind } from "./allocator.ts";
import type { Device, DevicePtr } from "./device.ts";

/** Advice for buffers without memory. */
const REMEDIES = {
  gathered: "its unit is sharded now; call model.call(x), not model.forward(x), or unshard() first",
  own: "it has no values; initialize or load it first",
} as const;

/** Allocates and frees blocks of a device's memory: its allocator, or a part of one. */
export type BlockSource = Pick<Allocator, "allocate" | "free">;

/** A block of device memory with counted owners. */
export class Buffer {
  /** Device of the memory. */
  readonly device: Device;
  /** Size of the memory. */
  readonly byteLength: number;
  /** Purpose of the memory, e.g. an FQN, for messages. */
  owner: string;
  /** Number of writes that would make tensors saved for a backward stale. */
  version = 0;
  /** Term of the peak to which the memory counts. */
  readonly kind: MemoryKind;
  readonly #source: BlockSource;
  #ptr: DevicePtr | undefined;
  #refs = 1;
  /** True if the memory came from the source, to which it is then freed. */
  #owned: boolean;

  private constructor(
    device: Device,
    byteLength: number,
    owner: string,
    kind: MemoryKind,
    { borrowed, source = device.allocator }: {
      readonly borrowed?: DevicePtr;
      readonly source?: BlockSource | undefined;
    } = {},
  ) {
    this.device = device;
    this.byteLength = byteLength;
    this.owner = owner;
    this.kind = kind;
    this.#ptr = borrowed;
    this.#source = source;
    this.#owned = false;
  }

  /** A new block from the device's allocator. */
  static allocate(device: Device, byteLength: number, owner: string, kind: MemoryKind = "activations"): Buffer {
    const buffer = new Buffer(device, byteLength, owner, kind);
    buffer.allocateMemory();
    return buffer;
  }

  /** A buffer over memory of another owner, which outlives it. */
  static borrow(device: Device, ptr: DevicePtr, byteLength: number, owner: string): Buffer {
    return new Buffer(device, byteLength, owner, "parameters", { borrowed: ptr });
  }

  /** A buffer with no memory yet. @param source allocates its memory @default the device's allocator */
  static empty(device: Device, byteLength: number, owner: string, kind: MemoryKind, source?: BlockSource): Buffer {
    return new Buffer(device, byteLength, owner, kind, { source });
  }

  /** True if the buffer has memory now. */
  get hasMemory(): boolean {
    return this.#ptr !== undefined;
  }

  /**
   * Address of the memory.
   *
   * @throws {UseAfterDisposeError} if it has no memory, or has been disposed
   */
  get ptr(): DevicePtr {
    if (this.#ptr === undefined) {
      throw new UseAfterDisposeError(
        this.#refs > 0
          ? `'${this.owner}' has no memory: ${REMEDIES[this.kind === "gathered" ? "gathered" : "own"]}`
          : `'${this.owner}' is used after it was disposed`,
      );
    }
    return this.#ptr;
  }

  /** True if more than one owner refers to it. */
  get shared(): boolean {
    return this.#refs > 1;
  }

  /** True if the last owner has released it. */
  get disposed(): boolean {
    return this.#refs === 0;
  }

  /** Allocates its memory. */
  allocateMemory(): void {
    if (this.#ptr !== undefined) throw new InternalError(`'${this.owner}' has memory already`);
    this.#ptr = this.#source.allocate(this.byteLength, this.owner, this.kind);
    this.#owned = true;
  }

  /** Frees its memory; references stay. */
  freeMemory(): void {
    if (this.#ptr !== undefined && this.#owned) this.#source.free(this.#ptr);
    this.#ptr = undefined;
    this.#owned = false;
  }

  /** Adds an owner. */
  retain(): void {
    if (this.#refs === 0) throw new UseAfterDisposeError(`'${this.owner}' is used after it was disposed`);
    this.#refs++;
  }

  /** Removes an owner; the last one frees the memory. */
  release(): void {
    if (this.#refs === 0) throw new InternalError(`'${this.owner}' is released more often than retained`);
    this.#refs--;
    if (this.#refs === 0) this.freeMemory();
  }

  /** Same as {@link release}, for `using`. */
  [Symbol.dispose](): void {
    this.release();
  }
}
