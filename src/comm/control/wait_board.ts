/**
 * Which rank of a world waits for which, in whatever group, so that ranks which wait for each other are found at once.
 *
 * Note [Ranks that wait for each other]: a rank that has waited for a moment writes down whom it waits for, and in which call. A wait
 * ends by what an awaited rank does, and a rank does nothing while it waits. So ranks can never go on if
 * 1. each of them waits, and for none but these ranks;
 * 2. each of them has looked once more after the last of them began to wait, and its own wait had still not ended. Without this look a
 *    rank could be counted although the awaited rank did its part just before it began to wait.
 *
 * For the second rule a rank counts its looks. After another rank has read the count, the first look that is counted may have begun
 * before the reading; the second began after it.
 *
 * @module
 */
import { at } from "../../at.ts";
import { lazily } from "../lazily.ts";

// Words of a rank's entry, which its owner alone writes. EPOCH is odd while the rank waits.
const EPOCH = 0;
const LOOKS = 1;
const COUNT = 2;
const AWAITED = 3;
/** Most ranks that an entry names. */
const MOST_AWAITED = 8;
const LENGTH: number = AWAITED + MOST_AWAITED;
const TEXT: number = LENGTH + 1;
const ENTRY_WORDS = 128;
const TEXT_BYTES: number = (ENTRY_WORDS - TEXT) * 4;
/** Bytes of a rank's entry. */
export const WAIT_ENTRY_BYTES: number = ENTRY_WORDS * 4;

/** Looks that a rank must have taken since. */
const ENOUGH_LOOKS = 2;

/** A wait that was seen. */
interface SeenWait {
  readonly epoch: number;
  readonly looks: number;
}

/** The entries of all ranks of a world, as one of them sees them. */
export class WaitBoard {
  readonly #rank: number;
  readonly #entry: (rank: number) => Int32Array;
  readonly #own: Int32Array;
  /** Ranks that were found to wait for each other alone, by their waits. */
  #seen: ReadonlyMap<number, SeenWait> = new Map();

  /**
   * @param bytes shared bytes of all ranks in turn, {@link WAIT_ENTRY_BYTES} each, zeros at first
   * @param rank this rank, in the world
   */
  constructor(bytes: Uint8Array, rank: number) {
    this.#rank = rank;
    this.#entry = lazily((rank) => {
      return new Int32Array(bytes.buffer, bytes.byteOffset + rank * WAIT_ENTRY_BYTES, ENTRY_WORDS);
    });
    this.#own = this.#entry(rank);
  }

  /**
   * Writes down that this rank waits.
   *
   * @param awaited world ranks; not written where they are too many
   * @param text the call
   */
  begin(awaited: readonly number[], text: string): void {
    if (this.#isWaiting || awaited.length > MOST_AWAITED) return;
    const own = this.#own;
    const encoded = new TextEncoder().encode(text).subarray(0, TEXT_BYTES);
    own.set(awaited, AWAITED);
    own[COUNT] = awaited.length;
    own[LENGTH] = encoded.length;
    new Uint8Array(own.buffer, own.byteOffset + TEXT * 4, TEXT_BYTES).set(encoded);
    this.#seen = new Map();
    Atomics.add(own, EPOCH, 1);
  }

  /** Writes down that this rank's wait is over. */
  end(): void {
    if (this.#isWaiting) Atomics.add(this.#own, EPOCH, 1);
  }

  /**
   * Counts that this rank has just looked, and its wait has not ended.
   *
   * @returns the calls of ranks, this one among them, that are known to wait for each other and never to go on; undefined if none are known to
   */
  look(): string | undefined {
    if (!this.#isWaiting) return undefined;
    Atomics.add(this.#own, LOOKS, 1);
    const epochs = this.#closed();
    const before = this.#seen;
    const isSame = epochs !== undefined && epochs.size === before.size &&
      [...epochs].every(([rank, epoch]) => before.get(rank)?.epoch === epoch);
    const looksOf = (rank: number): number => Atomics.load(this.#entry(rank), LOOKS);
    if (isSame) {
      const haveLooked = [...before].every(([rank, { looks }]) => ((looksOf(rank) - looks) | 0) >= ENOUGH_LOOKS);
      const ranks = [...before.keys()].sort((a, b) => a - b);
      return haveLooked ? ranks.map((rank) => this.#textOf(rank)).join("; ") : undefined;
    }
    // Looks are read after all epochs: these ranks wait by now.
    this.#seen = new Map(Array.from(epochs ?? [], ([rank, epoch]) => [rank, { epoch, looks: looksOf(rank) }]));
    return undefined;
  }

  /** A rank's wait in words. */
  #textOf(rank: number): string {
    const entry = this.#entry(rank);
    const length = at(entry, LENGTH, "length of text");
    const call = new TextDecoder().decode(new Uint8Array(entry.buffer, entry.byteOffset + TEXT * 4, length).slice());
    return `rank ${rank} waits in ${call} for rank ${this.#awaitedBy(rank).join(", ")}`;
  }

  /** World ranks that a rank waits for, or has waited for last. */
  #awaitedBy(rank: number): readonly number[] {
    const entry = this.#entry(rank);
    return [...entry.subarray(AWAITED, AWAITED + at(entry, COUNT, "count"))];
  }

  get #isWaiting(): boolean {
    return (Atomics.load(this.#own, EPOCH) & 1) === 1;
  }

  /** This rank, those that it waits for, those that they wait for, …, by their epochs; undefined if one of them does not wait. */
  #closed(): ReadonlyMap<number, number> | undefined {
    const epochs = new Map<number, number>();
    const open = [this.#rank];
    for (let rank = open.pop(); rank !== undefined; rank = open.pop()) {
      if (epochs.has(rank)) continue;
      const epoch = Atomics.load(this.#entry(rank), EPOCH);
      const awaited = this.#awaitedBy(rank);
      const isWaiting = (epoch & 1) === 1 && Atomics.load(this.#entry(rank), EPOCH) === epoch;
      if (!isWaiting || awaited.length === 0) return undefined;
      epochs.set(rank, epoch);
      open.push(...awaited);
    }
    return epochs;
  }
}
