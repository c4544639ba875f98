/**
 * Exchange of host bytes along the tree of a group: every rank sends its parent its own bytes and the bytes of the ranks below
 * it, and the root sends all of them down again. If no message is long, each rank publishes twice, for any number of ranks.
 *
 * Note [Boxes]: a rank writes upward bytes into two parts of its mailbox, and downward bytes into two others.
 * - Counters of parts only rise, so a reader never takes an older part for a newer one. Downward bytes are the same for all
 *   ranks, so all ranks count the same parts.
 * - The first two parts of an exchange need no permission: a rank that takes part in an exchange has read all of the
 *   exchange before.
 * - Each later part waits until its reader has taken the part two before it. Upward, the parent counts the parts of each
 *   child that it has taken in this exchange; downward, each child counts all parts that it has ever taken.
 *
 * @module
 */
import { at } from "../../at.ts";
import { UnsupportedError } from "../../errors.ts";
import { lazily } from "../lazily.ts";
import type { TreePlace } from "./tree.ts";

// Words of a mailbox's head.
const BEGUN = 0; // exchanges that the rank has begun
const UP = 1; // parts written for the parent, in all exchanges
const UP_BYTES = 2; // bytes that go up in this exchange
const ACK_EXCHANGE = 3; // exchange that the next word is of
const ACK_PARTS = 4; // parts of each child that were taken in it
const DOWN = 5; // parts written for the children, in all exchanges
const DOWN_BYTES = 6; // bytes that go down in this exchange
const DOWN_TAKEN = 7; // parts that the rank has taken of its parent, in all exchanges

export const TREE_HEAD_BYTES = 64;
const PART_BYTES = 4096;
const DEPTH = 2;
export const TREE_MAILBOX_BYTES: number = TREE_HEAD_BYTES + 2 * DEPTH * PART_BYTES;
/** Bytes before each rank's message: its rank and the message's length. */
const ENTRY_BYTES = 8;

/** A condition that an exchange waits for. */
export interface Awaited {
  /** Neighbour that must fulfil it. */
  readonly rank: number;
  readonly ready: () => boolean;
}

/** A child's message, as far as it has come. */
interface Inflow {
  readonly child: number;
  readonly bytes: Uint8Array;
  /** Number of bytes that were taken. */
  taken: number;
}

/** One rank's part in the exchanges of its group. */
export class TreeExchange {
  readonly #rank: number;
  readonly #place: TreePlace;
  readonly #size: number;
  readonly #head: (rank: number) => Int32Array;
  readonly #box: (rank: number) => Uint8Array;
  readonly #own: Int32Array;
  readonly #publish: () => void;
  /** Number of parts taken from each child, in all exchanges. */
  readonly #upTaken = new Map<number, number>();
  #exchange = 0;
  #up = 0;
  #down = 0;

  /**
   * @param mailboxOf gives {@link TREE_MAILBOX_BYTES} bytes of a rank, zeros at first; the neighbours' are copies that follow them
   * @param publish shows the neighbours what this rank has written
   */
  constructor(
    { rank, size, place }: { readonly rank: number; readonly size: number; readonly place: TreePlace },
    mailboxOf: (rank: number) => Uint8Array,
    publish: () => void,
  ) {
    this.#rank = rank;
    this.#size = size;
    this.#place = place;
    this.#head = lazily((other) => {
      const { buffer, byteOffset } = mailboxOf(other);
      return new Int32Array(buffer, byteOffset, TREE_HEAD_BYTES / 4);
    });
    this.#box = lazily((other) => mailboxOf(other).subarray(TREE_HEAD_BYTES));
    this.#own = this.#head(rank);
    this.#publish = publish;
  }

  /** Ranks that have begun fewer exchanges than this one, as far as their mailboxes' heads are known. */
  behind(): readonly number[] {
    return Array.from({ length: this.#size }, (_, rank) => rank)
      .filter((rank) => ((this.#word(rank, BEGUN) - this.#exchange) | 0) < 0);
  }

  /** Exchanges bytes; yields each condition that it waits for. @returns the bytes of every rank */
  *steps(bytes: Uint8Array): Generator<Awaited, readonly Uint8Array[]> {
    this.#own[BEGUN] = ++this.#exchange | 0;
    const below = [this.#entryOf(bytes), ...yield* this.#takeUp()];
    const byteLength = below.reduce((sum, part) => sum + part.length, 0);
    if (byteLength >= 2 ** 32) {
      throw new UnsupportedError(
        `Cannot exchange ${byteLength} bytes between hosts: their length has 32 bits; exchange less at once`,
      );
    }
    const gathered = concat(below);
    if (this.#place.parent !== undefined) yield* this.#sendUp(this.#place.parent, gathered);
    return this.#split(yield* this.#passDown(gathered));
  }

  /** This rank's bytes with its number. Nothing for no bytes: so a barrier of any number of ranks is one part each way. */
  #entryOf(bytes: Uint8Array): Uint8Array {
    if (bytes.length === 0) return bytes;
    const entry = new Uint8Array(ENTRY_BYTES + bytes.length);
    new DataView(entry.buffer).setUint32(0, this.#rank, true);
    new DataView(entry.buffer).setUint32(4, bytes.length, true);
    entry.set(bytes, ENTRY_BYTES);
    return entry;
  }

  /** Reads the children's messages, part by part, in turn. Each has one part at least. */
  *#takeUp(): Generator<Awaited, readonly Uint8Array[]> {
    const flows: Inflow[] = [];
    for (const child of this.#place.children) {
      yield this.#sentUp(child);
      flows.push({ child, bytes: new Uint8Array(this.#word(child, UP_BYTES) >>> 0), taken: 0 });
    }
    for (let round = 1;; round++) {
      const open = flows.filter(({ bytes, taken }) => round === 1 || taken < bytes.length);
      if (open.length === 0) return flows.map(({ bytes }) => bytes);
      for (const flow of open) {
        yield this.#sentUp(flow.child);
        const part = this.#upTaken.get(flow.child) ?? 0;
        flow.taken += copyPart(flow.bytes, flow.taken, this.#part(flow.child, part));
        this.#upTaken.set(flow.child, part + 1);
      }
      if (!flows.some(({ bytes, taken }) => taken < bytes.length)) continue;
      this.#own[ACK_EXCHANGE] = this.#exchange | 0;
      this.#own[ACK_PARTS] = round;
      this.#publish();
    }
  }

  #sentUp(child: number): Awaited {
    const part = this.#upTaken.get(child) ?? 0;
    return { rank: child, ready: () => this.#reached(child, UP, part + 1) };
  }

  *#sendUp(parent: number, bytes: Uint8Array): Generator<Awaited, void> {
    const exchange = this.#exchange | 0;
    this.#own[UP_BYTES] = bytes.length;
    for (let part = 0; part === 0 || part * PART_BYTES < bytes.length; part++) {
      const mayWrite = (): boolean =>
        this.#word(parent, ACK_EXCHANGE) === exchange && this.#word(parent, ACK_PARTS) > part - DEPTH;
      if (part >= DEPTH) yield { rank: parent, ready: mayWrite };
      this.#part(this.#rank, this.#up).set(bytes.subarray(part * PART_BYTES, (part + 1) * PART_BYTES));
      this.#own[UP] = ++this.#up | 0;
      this.#publish();
    }
  }

  /** Reads the downward message and passes it to the children; the root has it already. */
  *#passDown(gathered: Uint8Array): Generator<Awaited, Uint8Array> {
    const { parent, children } = this.#place;
    const first = this.#down;
    let all = gathered;
    for (let start = 0, part = 0; part === 0 || start < all.length; part++) {
      const number = first + part;
      if (parent !== undefined) {
        yield { rank: parent, ready: () => this.#reached(parent, DOWN, number + 1) };
        if (part === 0) all = new Uint8Array(this.#word(parent, DOWN_BYTES) >>> 0);
        copyPart(all, start, this.#part(parent, number, DEPTH));
      }
      if (children.length > 0) {
        for (const child of part < DEPTH ? [] : children) {
          yield { rank: child, ready: () => this.#reached(child, DOWN_TAKEN, number - DEPTH + 1) };
        }
        this.#part(this.#rank, number, DEPTH).set(all.subarray(start, start + PART_BYTES));
        this.#own[DOWN_BYTES] = all.length;
        this.#own[DOWN] = (number + 1) | 0;
      }
      this.#down = number + 1;
      this.#own[DOWN_TAKEN] = this.#down | 0;
      start += PART_BYTES;
      // The parent reads this counter only before the part after the next one.
      const isAskedFor = parent !== undefined && start + (DEPTH - 1) * PART_BYTES < all.length;
      if (children.length > 0 || isAskedFor) this.#publish();
    }
    return all;
  }

  /** Splits a gathered message into the bytes of each rank. */
  #split(all: Uint8Array): readonly Uint8Array[] {
    const view = new DataView(all.buffer, all.byteOffset, all.length);
    // Most exchanges are barriers, and a rank of thousands need not make as many empty arrays in each.
    const messages = new Array<Uint8Array>(this.#size).fill(new Uint8Array());
    for (let begin = 0; begin < all.length;) {
      const [rank, length] = [view.getUint32(begin, true), view.getUint32(begin + 4, true)];
      begin += ENTRY_BYTES;
      messages[rank] = all.slice(begin, begin + length);
      begin += length;
    }
    return messages;
  }

  /** An upward part of a rank's mailbox; with `skipped` upward parts before it, a downward part. */
  #part(rank: number, number: number, skipped: number = 0): Uint8Array {
    const begin = (skipped + number % DEPTH) * PART_BYTES;
    return this.#box(rank).subarray(begin, begin + PART_BYTES);
  }

  #reached(rank: number, word: number, target: number): boolean {
    return ((this.#word(rank, word) - target) | 0) >= 0;
  }

  #word(rank: number, word: number): number {
    return at(this.#head(rank), word, "word of a mailbox");
  }
}

/** Copies a part, or the rest of the message if that is shorter; returns the copied length. */
function copyPart(into: Uint8Array, begin: number, part: Uint8Array): number {
  const length = Math.min(PART_BYTES, into.length - begin);
  into.set(part.subarray(0, length), begin);
  return length;
}

function concat(pieces: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let end = 0;
  for (const piece of pieces) {
    all.set(piece, end);
    end += piece.length;
  }
  return all;
}
