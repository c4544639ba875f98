/**
 * The allocator of a device's memory: first fit over a list of free ranges, which are joined when they touch, with every byte
 * accounted for. It never asks the runtime for memory, so its figures are exact. A device that finds its memory in another way
 * overrides `reserve` and `release`.
 *
 * @module
 */
import { at, placeAfter } from "../at.ts";
import { InternalError, OutOfMemoryError } from "../errors.ts";
import { type DevicePtr, devicePtr } from "./device.ts";
import { formatBytes } from "../words.ts";

/**
 * Zero bytes of each kind of memory: the terms of a peak.
 *
 * @internal
 */
export const NO_TERMS = {
  parameters: 0, // this rank's own
  gathered: 0, // unsharded parameters, while a unit is in use
  gradients: 0, // unsharded, before they are reduced
  "gradient shards": 0, // this rank's own, after
  optimizer: 0,
  activations: 0, // and everything else of a step
  staging: 0, // buffers of collectives
  snapshot: 0, // the copy of an asynchronous save
};
/** Bytes by kind of memory. */
export type MemoryTerms = Readonly<typeof NO_TERMS>;
/** Name of a kind of memory. */
export type MemoryKind = keyof MemoryTerms;

/** Figures of an allocator. */
export interface MemoryStats {
  /** Bytes in use now. */
  readonly inUse: number;
  /** Most bytes in use at once since the last {@link Allocator.resetPeak}. */
  readonly peak: number;
  /** Bytes in use at the peak, by kind. */
  readonly peakTerms: MemoryTerms;
  /** One past the highest address allocated since then: more than the peak where memory is fragmented. */
  readonly highest: number;
  /** Bytes of the full arena. */
  readonly capacity: number;
}

/** A handle that keeps memory until it is disposed explicitly. */
export interface MemoryHolder {
  /**
   * Bytes of activations that it keeps.
   *
   * @param seen objects counted before, which are skipped; those counted now are added
   */
  heldBytes(seen: Set<object>): number;
}

interface MemoryBlock {
  readonly bytes: number;
  readonly owner: string;
  readonly kind: MemoryKind;
}

/** Alignment of every block in bytes: one cache line, and the 256 bytes that FSDP needs. */
const ALIGNMENT = 256;

/** Bytes that a block of `bytes` bytes takes. */
export function blockBytes(bytes: number): number {
  return Math.max(ALIGNMENT, Math.ceil(bytes / ALIGNMENT) * ALIGNMENT);
}

/** Allocates blocks of one arena. */
export class Allocator {
  /** Tensors that no scope frees. */
  readonly unscoped: Set<MemoryHolder> = new Set();
  readonly #where: string;
  readonly #begin: number;
  readonly #end: number;
  /** Free ranges by start, ascending, never adjacent: [start, end). */
  #free: { start: number; end: number }[];
  readonly #blocks = new Map<number, MemoryBlock>();
  #inUse = 0;
  readonly #terms = { ...NO_TERMS };
  #peak = 0;
  #peakTerms: MemoryTerms = NO_TERMS;
  #highest: number;

  /**
   * Manages a range of addresses.
   *
   * @param where the memory's name, for messages
   * @param begin first usable address
   * @param end one past the last
   */
  constructor(where: string, begin: number, end: number) {
    this.#where = where;
    this.#begin = Math.ceil(begin / ALIGNMENT) * ALIGNMENT;
    this.#end = end;
    this.#free = [{ start: this.#begin, end }];
    this.#highest = this.#begin;
  }

  /** First address. */
  get begin(): number {
    return this.#begin;
  }

  /** Present figures. */
  get stats(): MemoryStats {
    const [peak, peakTerms, highest] = [this.#peak, this.#peakTerms, this.#highest];
    return { inUse: this.#inUse, peak, peakTerms, highest, capacity: this.#end - this.#begin };
  }

  /** Bytes in use now, by kind. */
  get terms(): MemoryTerms {
    return { ...this.#terms };
  }

  /** Starts a new measurement of the peak, from the bytes in use now. */
  resetPeak(): void {
    this.#peak = this.#inUse;
    this.#peakTerms = { ...this.#terms };
    this.#highest = this.#begin;
    for (const [start, { bytes }] of this.#blocks) this.#highest = Math.max(this.#highest, start + bytes);
  }

  /**
   * Allocates a block of at least `bytes` bytes, uninitialized.
   *
   * @param bytes may be 0, which gives a valid address too
   * @param owner purpose of the block, e.g. an FQN, for messages
   * @param kind term of the peak to which it counts
   * @param alignment a power of two, at least 256 (a page for mapped memory)
   * @throws {OutOfMemoryError} with the bytes asked for and in use, the largest owners, and the tensors that no scope frees
   */
  allocate(
    bytes: number,
    owner: string,
    kind: MemoryKind = "activations",
    alignment: number = ALIGNMENT,
  ): DevicePtr {
    return this.adopt(bytes, owner, kind, (size) => this.reserve(size, alignment));
  }

  /**
   * Counts a block of other memory as this allocator's. Its owner frees it, after {@link disown}.
   *
   * @param take finds `size` bytes; undefined if there are none
   * @throws {OutOfMemoryError} as {@link allocate}
   */
  adopt(bytes: number, owner: string, kind: MemoryKind, take: (size: number) => number | undefined): DevicePtr {
    const size = blockBytes(bytes);
    const start = take(size);
    if (start === undefined) {
      throw new OutOfMemoryError(this.#where, size, this.#inUse, this.#end - this.#begin, this.#explain(size));
    }
    this.#blocks.set(start, { bytes: size, owner, kind });
    this.#inUse += size;
    this.#terms[kind] += size;
    if (start + size > this.#highest) this.#highest = start + size;
    if (this.#inUse > this.#peak) {
      this.#peak = this.#inUse;
      this.#peakTerms = { ...this.#terms };
    }
    return devicePtr(start);
  }

  /** Frees a block. */
  free(ptr: DevicePtr): void {
    this.release(ptr, this.disown(ptr));
  }

  /** Stops counting a block; returns its bytes. */
  disown(ptr: DevicePtr): number {
    const block = this.#blocks.get(ptr);
    if (block === undefined) throw new InternalError(`freed address ${ptr} that is not allocated`);
    this.#blocks.delete(ptr);
    this.#inUse -= block.bytes;
    this.#terms[block.kind] -= block.bytes;
    return block.bytes;
  }

  /** Finds `size` free bytes; undefined if there are none. */
  protected reserve(size: number, alignment: number): number | undefined {
    for (const [i, range] of this.#free.entries()) {
      const start = Math.ceil(range.start / alignment) * alignment;
      if (start + size > range.end) continue;
      const rest: { start: number; end: number }[] = [];
      if (start > range.start) rest.push({ start: range.start, end: start });
      if (start + size < range.end) rest.push({ start: start + size, end: range.end });
      this.#free.splice(i, 1, ...rest);
      return start;
    }
    return undefined;
  }

  /** Returns reserved bytes to the free ranges. */
  protected release(begin: number, size: number): void {
    const end = begin + size;
    const place = placeAfter(this.#free, ({ start }) => start < begin);
    const [before, after] = [this.#free[place - 1], this.#free[place]];
    if (after?.start === end) after.start = begin;
    else this.#free.splice(place, 0, { start: begin, end });
    if (before?.end !== begin) return;
    before.end = at(this.#free, place, "free range").end;
    this.#free.splice(place, 1);
  }

  /** Bytes of the largest block that could be reserved. */
  protected get largestFree(): number {
    return this.#free.reduce((most, range) => Math.max(most, range.end - range.start), 0);
  }

  /** The owners with the most bytes, largest first. */
  owners(limit: number): readonly { readonly owner: string; readonly bytes: number }[] {
    const byOwner = new Map<string, number>();
    for (const { owner, bytes } of this.#blocks.values()) byOwner.set(owner, (byOwner.get(owner) ?? 0) + bytes);
    return [...byOwner].map(([owner, bytes]) => ({ owner, bytes })).sort((a, b) => b.bytes - a.bytes).slice(0, limit);
  }

  #explain(asked: number): string {
    const list = this.owners(5).map(({ owner, bytes }) => `${owner}: ${formatBytes(bytes)}`).join(", ");
    const fits = this.#inUse + asked <= this.#end - this.#begin
      ? ` (the largest free block has ${formatBytes(this.largestFree)})`
      : "";
    return `Largest owners: ${list}${fits}. ${this.#remedy(asked)}`;
  }

  /** Names leaked tensors as the cause if they hold at least the bytes asked for. */
  #remedy(asked: number): string {
    const seen = new Set<object>();
    let held = 0;
    for (const holder of this.unscoped) held += holder.heldBytes(seen);
    if (held < asked) {
      return "Use fewer samples per micro-batch (raise '--micro-batches'), a shorter sequence, or more ranks";
    }
    return `${this.unscoped.size} tensors outlive every scope and hold ${
      formatBytes(held)
    } with the graphs behind them: begin the body of the ` +
      "loop that makes them with 'using _frame = scope()', and evaluate by evaluate() or inside noGrad()";
  }
}
