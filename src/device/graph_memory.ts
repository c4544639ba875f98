/**
 * The memory of a graph: parts of one block, allocated while work is captured, whose addresses stay the same in each launch.
 *
 * Note [Memory of a graph]: a graph allocates nothing itself, because nodes that do would keep NCCL from sharing addresses
 * between cards, and would allow only one copy of the graph. If a stream reuses a part that a second stream has freed, it must
 * wait for an event of that free, made here. Such a wait may delay work that could use other memory, so a stream takes
 * 1. parts that it has freed itself;
 * 2. then parts that another stream freed before this stream's last allocation of at least that size: two buffers alternate, as
 *   gathers' do;
 * 3. then parts that were never used;
 * 4. then any free part.
 *
 * @module
 */
import { at } from "../at.ts";
import { Allocator } from "./allocator.ts";
import type { Stream, StreamName } from "./stream.ts";

/** A free range of addresses. */
interface AddressRange {
  readonly start: number;
  readonly end: number;
  /** The free that returned the range; undefined if it was never used. */
  readonly freed: BlockFree | undefined;
}

/** A free of a block. */
interface BlockFree {
  readonly stream: StreamName;
  /** Position among all allocations and frees. */
  readonly time: number;
  /** Makes a stream wait for the free. */
  readonly order: (stream: Stream) => void;
}

/** An allocation of a stream. */
interface BlockAllocation {
  readonly time: number;
  readonly size: number;
}

/** Allocates parts of a block in the order of streams. See Note [Memory of a graph]. */
export class GraphMemory extends Allocator {
  readonly #streamOf: () => Stream;
  readonly #makesEvents: () => boolean;
  #ranges: readonly AddressRange[];
  /** For each stream, its allocations that were larger than all later ones, the newest last. */
  readonly #taken = new Map<StreamName, BlockAllocation[]>();
  #time = 0;

  /**
   * @param streamOf returns the current stream
   * @param makesEvents true if streams wait for frees of other streams; false while memory is only counted
   */
  constructor(where: string, begin: number, end: number, streamOf: () => Stream, makesEvents: () => boolean) {
    super(where, begin, end);
    this.#streamOf = streamOf;
    this.#makesEvents = makesEvents;
    this.#ranges = [{ start: begin, end, freed: undefined }];
  }

  /** True if an address is in the block. */
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

  /** Index of the first of adjacent ranges for which `isTaken` holds and which have `size` bytes together. */
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

  /** Takes `size` bytes from adjacent ranges, after the frees of these ranges. */
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
