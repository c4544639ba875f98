/**
 * Finds accesses to device memory in an undefined order: two streams use the same bytes, at least one writes, and no
 * path of events orders the accesses; memory is used after it was freed; memory is freed while another stream may
 * still use it.
 *
 * Note [Happens before]: each stream counts its operations. A clock says, for each stream, up to which operation something comes
 * after. An operation's clock is its stream's; an event keeps the clock of its stream, and a stream that waits for it takes the
 * later of both counts. An earlier operation comes before the present one if its count is within the present clock.
 *
 * @module
 */
import { placeAfter } from "../../at.ts";
import { HazardError, InternalError } from "../../errors.ts";
import { type StreamName, STREAMS } from "../stream.ts";

/** For each stream, up to which of its operations something comes after. */
export type Clock = Readonly<Record<StreamName, number>>;

/** Memory that an operation touches. */
export interface Touch {
  readonly address: number;
  readonly byteLength: number;
  readonly writes: boolean;
  /** The operation's name for the memory, e.g. a parameter's. */
  readonly what: string;
}

/** One access that later ones are compared with. */
interface Past extends Touch {
  readonly stream: StreamName;
  readonly count: number;
  readonly operation: string;
}

/** Some memory, and the purpose that it was allocated for. */
interface ByteRange {
  readonly begin: number;
  readonly end: number;
  readonly owner: string;
}

/** Memory in use. */
interface AccessedBlock extends ByteRange {
  readonly past: Past[];
}

/** Memory that was freed, and the clock that its next user comes after. */
interface Freed extends ByteRange {
  readonly clock: Clock;
}

/** What is known of one device's memory. */
export class Hazards {
  readonly #clocks: Record<StreamName, Record<StreamName, number>> = {
    compute: emptyClock(),
    gather: emptyClock(),
    reduce: emptyClock(),
    copy: emptyClock(),
  };
  /** Blocks in use, by first address, ascending. */
  readonly #blocks: AccessedBlock[] = [];
  /** Memory that was freed and is not in use again, by first address, ascending. */
  readonly #freed: Freed[] = [];
  /** Set by the first hazard: what is done to clean up after it must not throw another in its place. */
  #isOver = false;

  /** An operation begins on a stream; it has not touched anything yet. */
  begin(stream: StreamName): void {
    this.#clocks[stream][stream]++;
  }

  /** What comes after everything that was enqueued on a stream. */
  record(stream: StreamName): Clock {
    return { ...this.#clocks[stream] };
  }

  /** Makes a stream come after a clock. */
  wait(stream: StreamName, clock: Clock): void {
    const own = this.#clocks[stream];
    for (const name of STREAMS) own[name] = Math.max(own[name], clock[name]);
  }

  /** A block was given out on a stream, which comes after the last use of that memory: the allocator sees to it. */
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
   * A block was given back on a stream.
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
   * An operation touches memory.
   *
   * @param operation its name, for messages
   * @throws {HazardError} if nothing orders it after what it depends on, or the memory is not in use
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
      // What comes after a write, or after a read by the same stream, comes after all that it came after.
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

/** How many ranges, ascending, begin at or below an address. */
function countUpTo(ranges: readonly ByteRange[], address: number): number {
  return placeAfter(ranges, ({ begin }) => begin <= address);
}

function emptyClock(): Record<StreamName, number> {
  return { compute: 0, gather: 0, reduce: 0, copy: 0 };
}

function verb({ writes }: Pick<Touch, "writes">): string {
  return writes ? "writes" : "reads";
}
