/**
 * Ownership of device memory by counted references: the last `release` frees it. A buffer may also be without memory
 * for a while (a parameter on no device yet, or a resharded unit); whatever refers to it finds it again when memory is
 * attached.
 *
 * @module
 */
import { InternalError, UseAfterDisposeError } from "../errors.ts";
import type { Allocator, MemoryKind } from "./allocator.ts";
import type { Device, DevicePtr } from "./device.ts";

/** How what has no memory gets some. */
const REMEDIES = {
  gathered:
    "what is sharded is gathered while its module runs; call model.call(x), not model.forward(x), or unshard it first",
  own: "it has no values; initialize or load it first",
} as const;

/** What gives blocks of a device's memory and takes them back: its allocator, or a part of one. */
export type BlockSource = Pick<Allocator, "allocate" | "free">;

/** A block of device memory with counted owners. */
export class Buffer {
  /** What has the memory. */
  readonly device: Device;
  /** Bytes of it. */
  readonly byteLength: number;
  /** What the memory is for, e.g. an FQN; errors name it when memory runs out. */
  owner: string;
  /** Counts writes that a graph must not miss: what it saved before is another one then. */
  version = 0;
  /** Which term of the peak it belongs to. */
  readonly kind: MemoryKind;
  readonly #source: BlockSource;
  #ptr: DevicePtr | undefined;
  #refs = 1;
  /** Whether the source gave the memory, so that it goes back there. */
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
    buffer.attach();
    return buffer;
  }

  /** Memory with another owner, which outlives the buffer. */
  static borrow(device: Device, ptr: DevicePtr, byteLength: number, owner: string): Buffer {
    return new Buffer(device, byteLength, owner, "parameters", { borrowed: ptr });
  }

  /** A buffer with no memory yet. @param source where it gets some @default the device's allocator */
  static empty(device: Device, byteLength: number, owner: string, kind: MemoryKind, source?: BlockSource): Buffer {
    return new Buffer(device, byteLength, owner, kind, { source });
  }

  /** Whether the buffer has memory now. */
  get attached(): boolean {
    return this.#ptr !== undefined;
  }

  /**
   * Its address.
   *
   * @throws {UseAfterDisposeError} if it has no memory (any more)
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

  /** Whether more than one owner refers to it. */
  get shared(): boolean {
    return this.#refs > 1;
  }

  /** Whether the last owner has let go. */
  get disposed(): boolean {
    return this.#refs === 0;
  }

  /** Gives it memory. */
  attach(): void {
    if (this.#ptr !== undefined) throw new InternalError(`'${this.owner}' has memory already`);
    this.#ptr = this.#source.allocate(this.byteLength, this.owner, this.kind);
    this.#owned = true;
  }

  /** Gives its memory back; references stay. */
  detach(): void {
    if (this.#ptr !== undefined && this.#owned) this.#source.free(this.#ptr);
    this.#ptr = undefined;
    this.#owned = false;
  }

  /** One more owner. */
  retain(): void {
    if (this.#refs === 0) throw new UseAfterDisposeError(`'${this.owner}' is used after it was disposed`);
    this.#refs++;
  }

  /** One owner less; the last one frees the memory. */
  release(): void {
    if (this.#refs === 0) throw new InternalError(`'${this.owner}' is released more often than retained`);
    this.#refs--;
    if (this.#refs === 0) this.detach();
  }

  /** Same as {@link release}, for `using`. */
  [Symbol.dispose](): void {
    this.release();
  }
}
