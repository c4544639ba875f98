/**
 * Finds accesses to device memory in an undefined order:
 * - two streams use the same bytes, at least one writes, and no path of events orders the accesses;
 * - memory is used after it was freed;
 * - memory is freed while another stream may still use it.
 *
 * Note [Happens before]: each stream counts its operations. A clock holds a count for each stream: the operations up to it are
 * ordered before. An operation's clock is its stream's. An event keeps the clock of its stream; a stream that waits for it takes
 * the larger count of both clocks, for each stream. An earlier operation is ordered before the present one if its count is within
 * the present clock.
 *
 * @module
 */
import { placeAfter } from "../../at.ts";
import { HazardError, InternalError } from "../../errors.ts";
import { type StreamName, STREAMS } from "../stream.ts";

/** For each stream, the last operation that is ordered before. */
export type Clock = Readonly<Record<StreamName, number>>;

/** Memory that an operation accesses. */
export interface Touch {
  readonly address: number;
  readonly byteLength: number;
  readonly writes: boolean;
  /** Name of the memory in the operation, e.g. a parameter's. */
  readonly what: string;
}

/** An access with which later ones are compared. */
interface Past extends Touch {
  readonly stream: StreamName;
  readonly count: number;
  readonly operation: string;
}

/** A range of memory, and its purpose. */
interface ByteRange {
  readonly begin: number;
  readonly end: number;
  readonly owner: string;
}

interface AccessedBlock extends ByteRange {
  readonly past: Past[];
}

/** Freed memory, and the clock after which it may be used again. */
interface FreedRange extends ByteRange {
  readonly clock: Clock;
}

/** The accesses to one device's memory. */
export class Hazards {
  readonly #clocks: Record<StreamName, Record<StreamName, number>> = {
    compute: emptyClock(),
    gather: emptyClock(),
    reduce: emptyClock(),
    copy: emptyClock(),
  };
  /** Blocks in use, by first address, ascending. */
  readonly #blocks: AccessedBlock[] = [];
  /** Freed memory that is not in use again, by first address, ascending. */
  readonly #freed: FreedRange[] = [];
  /** True after the first hazard: cleaning up after it must not throw another. */
  #isOver = false;

  /** Begins an operation on a stream, before its accesses. */
  begin(stream: StreamName): void {
    this.#clocks[stream][stream]++;
  }

  /** The clock after all work enqueued on a stream. */
  record(stream: StreamName): Clock {
    return { ...this.#clocks[stream] };
  }

  /** Orders a stream after a clock. */
  wait(stream: StreamName, clock: Clock): void {
    const own = this.#clocks[stream];
    for (const name of STREAMS) own[name] = Math.max(own[name], clock[name]);
  }

  /** Records that a block was allocated on a stream; the allocator orders the stream after the last use of that memory. */
  allocated(stream: StreamName, begin: number, byteLength: number, owner: string): void {
    const end = begin + byteLength;
    // Freed ranges do not overlap, so among the ranges that begin below the block only the last can reach into it.
    const first = Math.max(0, countUpTo(this.#freed, begin) - 1);
    const last = countUpTo(this.#freed, end - 1);
    const rest = this.#freed.slice(first, last).flatMap((freed) => {
      if (freed.end <= begin) return [freed];
      this.wait(stream, freed.clock);
      const left = freed.begin < begin ? [{ ...freed, end: begin }] : [];
      const right = end < freed.end ? [{ ...freed, begin: end }] : [];
      return [...left, ...right];
    });
    this.#freed.splice(first, last - first, ...rest);
    this.#blocks.splice(countUpTo(this.#blocks, begin), 0, { begin, end, owner, past: [] });
  }

  /**
   * Records that a block was freed on a stream.
   *
   * @throws {HazardError} if another stream may still use it
   */
  freed(stream: StreamName, begin: number): void {
    const place = countUpTo(this.#blocks, begin) - 1;
    const block = this.#blocks[place];
    if (block?.begin !== begin) throw new InternalError(`freed address ${begin} that is not allocated`);
    const clock = this.#clocks[stream];
    const late = block.past.find((past) => past.count > clock[past.stream]);
    if (late !== undefined) {
      this.#report(
        `'${block.owner}' is freed on stream ${stream} while '${late.operation}' on stream ${late.stream} ` +
          `${verb(late)} it as '${late.what}': make ${stream} wait for an event that ${late.stream} records after it`,
      );
    }
    this.#blocks.splice(place, 1);
    const { end, owner } = block;
    this.#freed.splice(countUpTo(this.#freed, begin), 0, { begin, end, owner, clock: this.record(stream) });
  }

  /**
   * Records that an operation accesses memory.
   *
   * @param operation its name, for messages
   * @throws {HazardError} if nothing orders it after the work that it depends on, or the memory is not in use
   */
  touch(stream: StreamName, operation: string, touch: Touch): void {
    const { address, byteLength, writes, what } = touch;
    if (byteLength === 0) return;
    const end = address + byteLength;
    const block = this.#blocks[countUpTo(this.#blocks, address) - 1];
    if (block === undefined || end > block.end) {
      const freed = this.#freed.find((range) => range.begin < end && address < range.end);
      const state = freed === undefined ? "was never given out" : `was freed ('${freed.owner}')`;
      return this.#report(`'${operation}' ${verb(touch)} '${what}' at ${address} to ${end}, memory that ${state}`);
    }
    const clock = this.#clocks[stream];
    const { past } = block;
    let kept = 0;
    for (const one of past) {
      const isApart = one.address + one.byteLength <= address || end <= one.address;
      const isBefore = one.count <= clock[one.stream];
      if (!isApart && (writes || one.writes) && !isBefore) {
        this.#report(
          `'${operation}' on stream ${stream} ${verb(touch)} '${what}' of '${block.owner}', ` +
            `which '${one.operation}' on stream ${one.stream} ${verb(one)} as '${one.what}', ` +
            `with no event between them: make ${stream} wait for one that ${one.stream} records after it`,
        );
      }
      // An access ordered after a write, or after a read by the same stream, is ordered after everything before that.
      const isCovered = address <= one.address && one.address + one.byteLength <= end;
      const isReplaced = isCovered && isBefore && (writes || (!one.writes && one.stream === stream));
      if (!isReplaced) past[kept++] = one;
    }
    past.length = kept;
    past.push({ address, byteLength, writes, what, stream, count: clock[stream], operation });
  }

  #report(hazard: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    throw new HazardError(hazard);
  }
}

/** Number of ranges, in ascending order, that begin at or below an address. */
function countUpTo(ranges: readonly ByteRange[], address: number): number {
  return placeAfter(ranges, ({ begin }) => begin <= address);
}

function emptyClock(): Record<StreamName, number> {
  return { compute: 0, gather: 0, reduce: 0, copy: 0 };
}

function verb({ writes }: Pick<Touch, "writes">): string {
  return writes ? "writes" : "reads";
}
