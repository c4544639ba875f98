/**
 * The memory of a graph: addresses in one block, which are handed out while work is captured and stay as they are whenever it is
 * done again.
 *
 * Note [Memory of a graph]: in a graph nothing is allocated, as nodes that do would keep NCCL from sharing addresses between cards,
 * and would let only one copy of a graph be there. So blocks are parts of one that was there before, and what uses a part after
 * another stream has freed it must come after that by an event, which is made here. Such an event holds a stream back that
 * could go on in other memory; so a stream takes what it freed itself, then what another one freed before this one's last
 * allocation of that size (two buffers take turns then, as those of gathers do), then what was never used.
 *
 * @module
 */
import { at } from "../at.ts";
import { Allocator } from "./allocator.ts";
import type { Stream, StreamName } from "./stream.ts";

/** Addresses that are free. */
interface AddressRange {
  readonly start: number;
  readonly end: number;
  /** Which stream freed them when; undefined for what was never used. */
  readonly freed: Freed | undefined;
}

/** A free of a block. */
interface Freed {
  readonly stream: StreamName;
  /** Its place among all allocations and frees. */
  readonly time: number;
  /** Lets a stream come after it. */
  readonly order: (stream: Stream) => void;
}

/** An allocation of a stream. */
interface Taken {
  readonly time: number;
  readonly size: number;
}

/** Hands out addresses of a block in the order of streams. See Note [Memory of a graph]. */
export class GraphMemory extends Allocator {
  readonly #streamOf: () => Stream;
  readonly #makesEvents: () => boolean;
  #ranges: readonly AddressRange[];
  /** For each stream its allocations that no later one was as large as, the newest last. */
  readonly #taken = new Map<StreamName, Taken[]>();
  #time = 0;

  /**
   * @param streamOf the stream under way
   * @param makesEvents whether streams are made to wait for frees of others now: not where it is only tried how much memory is needed
   */
  constructor(where: string, begin: number, end: number, streamOf: () => Stream, makesEvents: () => boolean) {
    super(where, begin, end);
    this.#streamOf = streamOf;
    this.#makesEvents = makesEvents;
    this.#ranges = [{ start: begin, end, freed: undefined }];
  }

  /** Whether an address is in the block. */
  has(address: number): boolean {
    return address >= this.begin && address < this.begin + this.stats.capacity;
  }

  protected override reserve(size: number): number | undefined {
    const stream = this.#streamOf();
    const time = ++this.#time;
    const taken = this.#taken.get(stream.name) ?? [];
    const isOwn = ({ freed }: AddressRange): boolean => freed?.stream === stream.name;
    const largestSince = (then: number): number => taken.find((one) => one.time > then)?.size ?? 0;
    const isOld = (range: AddressRange): boolean =>
      isOwn(range) || (range.freed !== undefined && largestSince(range.freed.time) >= size);
    const isFresh = (range: AddressRange): boolean => range.freed === undefined || isOld(range);
    const found = this.#find(size, isOwn) ?? this.#find(size, isOld) ?? this.#find(size, isFresh) ??
      this.#find(size, () => true);
    if (found === undefined) return undefined;
    const start = this.#take(found, size, stream);
    while ((taken.at(-1)?.size ?? Infinity) <= size) taken.pop();
    taken.push({ time, size });
    this.#taken.set(stream.name, taken);
    return start;
  }

  protected override release(start: number, size: number): void {
    const stream = this.#streamOf();
    const event = this.#makesEvents() ? stream.record() : undefined;
    const order = (other: Stream): void => {
      if (event !== undefined) other.wait(event);
    };
    const range = { start, end: start + size, freed: { stream: stream.name, time: ++this.#time, order } };
    const place = this.#ranges.findIndex((other) => other.start > start);
    this.#ranges = this.#ranges.toSpliced(place < 0 ? this.#ranges.length : place, 0, range);
  }

  protected override get largestFree(): number {
    return this.#ranges.reduce((most, { start, end }) => Math.max(most, end - start), 0);
  }

  /** The first of some neighbouring ranges of that kind that have so many bytes together. */
  #find(size: number, isTaken: (range: AddressRange) => boolean): number | undefined {
    let [first, bytes, end] = [0, 0, -1];
    for (const [i, range] of this.#ranges.entries()) {
      if (!isTaken(range)) {
        bytes = 0;
        continue;
      }
      if (bytes === 0 || range.start !== end) [first, bytes] = [i, 0];
      bytes += range.end - range.start;
      end = range.end;
      if (bytes >= size) return first;
    }
    return undefined;
  }

  /** Takes bytes from some neighbouring ranges on, after what freed them. */
  #take(first: number, size: number, stream: Stream): number {
    const { start } = at(this.#ranges, first, "free range");
    const end = start + size;
    const rest: AddressRange[] = [];
    let count = 0;
    for (const range of this.#ranges.slice(first)) {
      if (range.start >= end) break;
      count++;
      if (range.freed !== undefined && range.freed.stream !== stream.name) range.freed.order(stream);
      if (range.end > end) rest.push({ ...range, start: end });
    }
    this.#ranges = this.#ranges.toSpliced(first, count, ...rest);
    return start;
  }
}
