/**
 * A stream at the store, and what is to be sent on it: never a queue of changes, but which blocks have changed.
 *
 * @module
 */
import { FrameReader, FrameWriter, listField, NUMBER_BYTES, STRANGER_BYTES } from "./frames.ts";
import type { Change } from "./replica.ts";
import type { StoredBlock } from "./stored_group.ts";

/** One stream, of a rank or of somebody who has not said who it is. */
export class StoreStream {
  readonly descriptor: number;
  /** Address of the other end. */
  readonly from: string;
  readonly since: number = performance.now();
  readonly challenge: Uint8Array = crypto.getRandomValues(new Uint8Array(NUMBER_BYTES));
  readonly reader: FrameReader = new FrameReader(STRANGER_BYTES);
  readonly writer: FrameWriter = new FrameWriter();
  /** Blocks that it follows and that have changed since it was sent them. */
  readonly changed: Set<StoredBlock> = new Set();
  rank: number | undefined;
  /** Whether it is to be told who is missing. */
  needsRoll = false;
  /** The question that is to be answered when all else was sent. */
  asked: number | undefined;
  /** Whether it ends when all was sent. */
  isEnding = false;
  hasSaidBye = false;
  /** Whether a process in the place of a rank that has ended is at the other end. */
  isStandIn = false;
  /** Other blocks of which it is to be sent the first bytes, and how many. */
  readonly #shown = new Map<StoredBlock, number>();
  /** Up to which change it was sent a block. */
  readonly #told = new Map<StoredBlock, number>();

  constructor({ descriptor, from }: Pick<StoreStream, "descriptor" | "from">) {
    this.descriptor = descriptor;
    this.from = from;
  }

  /** The rank that this stream is of is to be sent the first bytes of a block, unless it follows it. */
  show(rank: number, block: StoredBlock, byteLength: number): void {
    if (!block.followers.has(rank)) this.#shown.set(block, Math.max(this.#shown.get(block) ?? 0, byteLength));
  }

  /** A block is gone. */
  forget(block: StoredBlock): void {
    this.changed.delete(block);
    this.#told.delete(block);
    this.#shown.delete(block);
  }

  /**
   * Writes what is to be sent, until so many bytes are pending.
   *
   * @param clock number of the newest change
   * @param missing ranks that have not joined
   * @param refusals streams that were refused, in words
   */
  prepare(longest: number, clock: number, missing: readonly number[], refusals: string): void {
    const { writer, changed } = this;
    if (this.needsRoll) {
      this.needsRoll = false;
      writer.write("roll", listField(missing), refusals);
    }
    for (const block of changed) {
      if (writer.pending.length > longest) return;
      changed.delete(block);
      this.#tell(block, block.since(this.#told.get(block) ?? 0));
      this.#told.set(block, clock);
    }
    for (const [block, byteLength] of this.#shown) {
      if (writer.pending.length > longest) return;
      this.#shown.delete(block);
      this.#tell(block, block.since(0, byteLength));
    }
    if (this.asked !== undefined) writer.write("answer", this.asked);
    this.asked = undefined;
  }

  #tell({ group, rank }: StoredBlock, changes: readonly Change[]): void {
    const fields = changes.flatMap(({ offset, bytes }) => [offset, bytes.length, bytes]);
    if (fields.length > 0) this.writer.write("update", group, rank, ...fields);
  }
}
