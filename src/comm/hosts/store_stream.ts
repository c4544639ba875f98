/**
 * A stream at the store, and the set of changed blocks that are to be sent on it.
 *
 * @module
 */
import { Silence } from "./beats.ts";
import { FrameReader, FrameWriter, listField, NUMBER_BYTES, STRANGER_BYTES } from "./frames.ts";
import type { Change } from "./replica.ts";
import type { StoredBlock } from "./stored_group.ts";

/** The ranks that have not joined. */
export interface Roll {
  /** Their number. */
  readonly missing: number;
  /** The first of them. */
  readonly named: readonly number[];
  /** Refused streams, in words. */
  readonly refusals: string;
}

/** One stream, of a rank or of a process that has not proved its rank. */
export class StoreStream {
  readonly descriptor: number;
  /** Address of the other end. */
  readonly from: string;
  readonly since: number = performance.now();
  readonly challenge: Uint8Array = crypto.getRandomValues(new Uint8Array(NUMBER_BYTES));
  readonly reader: FrameReader = new FrameReader(STRANGER_BYTES);
  readonly writer: FrameWriter = new FrameWriter();
  /** Followed blocks with changes that were not sent. */
  readonly changed: Set<StoredBlock> = new Set();
  readonly silence: Silence = new Silence();
  rank: number | undefined;
  /** True if the list of missing ranks is to be sent. */
  needsRoll = false;
  /** Question to answer after all else was sent. */
  asked: number | undefined;
  /** True if the stream is closed after all was sent. */
  isEnding = false;
  hasSaidBye = false;
  /** True if the other end takes the place of a rank that has ended. */
  isStandIn = false;
  /** Other blocks, with the number of first bytes to send. */
  readonly #shown = new Map<StoredBlock, number>();
  /** Number of the newest change that was sent, by block. */
  readonly #sent = new Map<StoredBlock, number>();

  constructor({ descriptor, from }: Pick<StoreStream, "descriptor" | "from">) {
    this.descriptor = descriptor;
    this.from = from;
  }

  /** True if bytes wait for room in the stream. */
  get wantsOutput(): boolean {
    return this.writer.length > 0;
  }

  /** True if there is nothing to send, nor to do after. A store of thousands of streams has something for a few of them at a time. */
  get isIdle(): boolean {
    return this.writer.length === 0 && this.changed.size === 0 && this.#shown.size === 0 && !this.needsRoll &&
      this.asked === undefined && !this.isEnding;
  }

  /** Schedules the first bytes of a block for this stream's rank, unless it follows the block. */
  show(rank: number, block: StoredBlock, byteLength: number): void {
    if (!block.followers.has(rank)) this.#shown.set(block, Math.max(this.#shown.get(block) ?? 0, byteLength));
  }

  /** Removes a block that no longer exists. */
  forget(block: StoredBlock): void {
    this.changed.delete(block);
    this.#sent.delete(block);
    this.#shown.delete(block);
  }

  /**
   * Writes scheduled frames, until `longest` bytes are pending.
   *
   * @param clock number of the newest change
   * @param rollOf gives the roll, where it is to be sent
   */
  prepare(longest: number, clock: number, rollOf: () => Roll): void {
    const { writer, changed } = this;
    if (this.needsRoll) {
      this.needsRoll = false;
      const { missing, named, refusals } = rollOf();
      writer.write("roll", missing, listField(named), refusals);
    }
    for (const block of changed) {
      if (writer.length > longest) return;
      changed.delete(block);
      this.#write(block, block.since(this.#sent.get(block) ?? 0));
      this.#sent.set(block, clock);
    }
    for (const [block, byteLength] of this.#shown) {
      if (writer.length > longest) return;
      this.#shown.delete(block);
      this.#write(block, block.since(0, byteLength));
    }
    if (this.asked !== undefined) writer.write("answer", this.asked);
    this.asked = undefined;
  }

  #write({ group, rank }: StoredBlock, changes: readonly Change[]): void {
    const fields = changes.flatMap(({ offset, bytes }) => [offset, bytes.length, bytes]);
    if (fields.length > 0) this.writer.write("update", group, rank, ...fields);
  }
}
