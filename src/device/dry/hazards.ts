/**
 * Finds accesses to device memory that nothing orders: two streams at the same bytes, one of them writing, with no path of
 * events between them; memory that was freed; memory freed while another stream may still use it.
 *
 * Note [Happens before]: each stream counts its operations. A clock says, for each stream, up to which operation something comes
 * after. An operation's clock is its stream's; an event keeps the clock of its stream, and a stream that waits for it takes the
 * later of both counts. An earlier operation comes before the present one if its count is within the present clock.
 *
 * @module
 */
import { HazardError, InternalError } from "../../errors.ts";
import { type StreamName, STREAMS } from "../stream.ts";

/** For each stream, up to which of its operations something comes after. */
export type Clock = Readonly<Record<StreamName, number>>;

/** Memory that an operation touches. */
export interface Touch {
  readonly address: number;
  readonly byteLength: number;
  readonly writes: boolean;
  /** What it is to the operation, e.g. a parameter's name. */
  readonly what: string;
}

/** One access that later ones are compared with. */
interface Past extends Touch {
  readonly stream: StreamName;
  readonly count: number;
  readonly operation: string;
}

/** Memory in use. */
interface Block {
  readonly begin: number;
  readonly end: number;
  readonly owner: string;
  past: Past[];
}

/** Memory that was freed, and the clock that its next user comes after. */
interface Freed {
  readonly begin: number;
  readonly end: number;
  readonly owner: string;
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
  readonly #blocks: Block[] = [];
  #freed: Freed[] = [];

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
    this.#freed = this.#freed.flatMap((freed) => {
      if (freed.end <= begin || end <= freed.begin) return [freed];
      this.wait(stream, freed.clock);
      const left = freed.begin < begin ? [{ ...freed, end: begin }] : [];
      const right = end < freed.end ? [{ ...freed, begin: end }] : [];
      return [...left, ...right];
    });
    this.#blocks.splice(this.#place(begin), 0, { begin, end, owner, past: [] });
  }

  /**
   * A block was given back on a stream.
   *
   * @throws {HazardError} if another stream may still use it
   */
  freed(stream: StreamName, begin: number): void {
    const place = this.#place(begin) - 1;
    const block = this.#blocks[place];
    if (block?.begin !== begin) throw new InternalError(`freed address ${begin} that is not allocated`);
    const clock = this.#clocks[stream];
    const late = block.past.find((past) => past.count > clock[past.stream]);
    if (late !== undefined) {
      throw new HazardError(
        `'${block.owner}' is freed on stream ${stream} while '${late.operation}' on stream ${late.stream} ${
          verb(late)
        } it as ` +
          `'${late.what}': make ${stream} wait for an event that ${late.stream} records after it`,
      );
    }
    this.#blocks.splice(place, 1);
    this.#freed.push({ ...block, clock: { ...clock } });
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
    const block = this.#blocks[this.#place(address) - 1];
    if (block === undefined || end > block.end) {
      const freed = this.#freed.find((range) => range.begin < end && address < range.end);
      const state = freed === undefined ? "was never given out" : `was freed ('${freed.owner}')`;
      throw new HazardError(`'${operation}' ${verb(touch)} '${what}' at ${address} to ${end}, memory that ${state}`);
    }
    const clock = this.#clocks[stream];
    const kept: Past[] = [];
    for (const past of block.past) {
      const apart = past.address + past.byteLength <= address || end <= past.address;
      const isBefore = past.count <= clock[past.stream];
      if (!apart && (writes || past.writes) && !isBefore) {
        throw new HazardError(
          `'${operation}' on stream ${stream} ${
            verb(touch)
          } '${what}' of '${block.owner}', which '${past.operation}' on stream ` +
            `${past.stream} ${
              verb(past)
            } as '${past.what}', with no event between them: make ${stream} wait for one that ` +
            `${past.stream} records after it`,
        );
      }
      // What comes after a write, or after a read by the same stream, comes after all that it came after.
      const covered = address <= past.address && past.address + past.byteLength <= end;
      const replaced = covered && isBefore && (writes || (!past.writes && past.stream === stream));
      if (!replaced) kept.push(past);
    }
    kept.push({ ...touch, stream, count: clock[stream], operation });
    block.past = kept;
  }

  /** How many blocks begin at or below an address. */
  #place(address: number): number {
    let [low, high] = [0, this.#blocks.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const block = this.#blocks[middle];
      if (block !== undefined && block.begin <= address) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

function emptyClock(): Record<StreamName, number> {
  return { compute: 0, gather: 0, reduce: 0, copy: 0 };
}

function verb({ writes }: Pick<Touch, "writes">): string {
  return writes ? "writes" : "reads";
}
