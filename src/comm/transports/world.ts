/**
 * What all groups of one world share: options, the abort word with the first reason, how to tell whether a rank lives.
 * The words lie in memory of all ranks; how a thread sleeps on one differs by transport and is a {@link Futex}.
 *
 * @module
 */

/** What a rank's end of a transport can be told. */
export interface TransportOptions {
  /** Seconds after which a wait for a live rank fails; default 600. */
  readonly timeoutSeconds?: number;
  /** Gets a line when a live rank is late. */
  readonly report?: (text: string) => void;
  /** Seconds after which a live rank counts as late; default 10. */
  readonly reportSeconds?: number;
  /** Most bytes that go to one rank in one round; default 512 KiB. Does not change any bit of a result. */
  readonly chunkBytes?: number;
}

/** Default of {@link TransportOptions.timeoutSeconds}. */
export const DEFAULT_TIMEOUT_SECONDS: number = 600;
/** Default of {@link TransportOptions.reportSeconds}. */
export const DEFAULT_REPORT_SECONDS: number = 10;
/** Default of {@link TransportOptions.chunkBytes}. */
export const DEFAULT_CHUNK_BYTES: number = 512 * 1024;

/** Sleeps on a shared word, and wakes those who do. */
export interface Futex {
  /** Sleeps while word `index` holds `expected`, at most `timeoutMs`; may wake for no reason. */
  wait(index: number, expected: number, timeoutMs: number): void;
  /** Wakes all that sleep on word `index`. */
  wake(index: number): void;
}

/** Tells whether a rank of the world still runs. */
export interface Liveness {
  /** Whether it has died; a rank that left in order has not. */
  isDead(worldRank: number): boolean;
}

/** Why the world stopped. */
export interface AbortCause {
  /** World rank that stopped it, or -1 for who started the ranks. */
  readonly rank: number;
  readonly reason: string;
}

const STATE = 0;
const RANK = 1;
const LENGTH = 2;
const TEXT = 8;
const TEXT_WORDS = 1024;
/** Words of the abort area. */
export const ABORT_WORDS: number = TEXT + TEXT_WORDS;

const FREE = 0;
const WRITING = 1;
const READY = 2;

/** The abort word of a world: set once, by the first rank that fails. */
export class AbortArea {
  readonly #words: Int32Array;
  readonly #text: Uint8Array;

  /** @param words the first {@link ABORT_WORDS} shared words of the world, zero at first */
  constructor(words: Int32Array) {
    this.#words = words;
    this.#text = new Uint8Array(words.buffer, words.byteOffset + TEXT * 4, TEXT_WORDS * 4);
  }

  /** Whether somebody has aborted. */
  get isSet(): boolean {
    return Atomics.load(this.#words, STATE) !== FREE;
  }

  /** Sets it unless it is set. */
  set(rank: number, reason: string): void {
    if (Atomics.compareExchange(this.#words, STATE, FREE, WRITING) !== FREE) return;
    const bytes = new TextEncoder().encode(reason).subarray(0, this.#text.length);
    this.#text.set(bytes);
    Atomics.store(this.#words, RANK, rank);
    Atomics.store(this.#words, LENGTH, bytes.length);
    Atomics.store(this.#words, STATE, READY);
  }

  /** Who stopped the world and why, or `undefined`. */
  get cause(): AbortCause | undefined {
    if (!this.isSet) return undefined;
    // A rank may die between claiming the word and filling in the text.
    for (let i = 0; i < 1e6 && Atomics.load(this.#words, STATE) !== READY; i++);
    const length = Atomics.load(this.#words, LENGTH);
    return {
      rank: Atomics.load(this.#words, RANK),
      reason: new TextDecoder().decode(this.#text.slice(0, length)),
    };
  }
}
