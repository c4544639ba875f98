/**
 * The abort word of a world: set once, by the first rank that fails, with its reason.
 *
 * @module
 */

const STATE = 0;
const RANK = 1;
const LENGTH = 2;
const LOSS = 3;
const TEXT = 8;
const TEXT_WORDS = 1024;
/** Words of the abort area. */
export const ABORT_WORDS: number = TEXT + TEXT_WORDS;

const FREE = 0;
const WRITING = 1;
const READY = 2;

// What LOSS holds; from DEAD on a dead rank.
const NO_LOSS = 0;
const ALL_LIVE = 1;
const DEAD = 2;

/** Why ranks wait in vain. */
export interface Loss {
  /** World rank of one that is dead; undefined where one is late or calls something else. */
  readonly dead: number | undefined;
}

/** The shared words that every wait looks at. */
export class AbortArea {
  readonly #words: Int32Array;
  readonly #text: Uint8Array;
  #told = false;

  /** @param words shared words of the world, of which the first {@link ABORT_WORDS} are used; zero at first */
  constructor(words: Int32Array) {
    this.#words = words;
    this.#text = new Uint8Array(words.buffer, words.byteOffset + TEXT * 4, TEXT_WORDS * 4);
  }

  /**
   * Sets it unless it is set.
   *
   * @param loss if a rank is dead, late or elsewhere, and did not fail with a reason: then every rank is to tell what it waits in
   */
  set(rank: number, reason: string, loss?: Loss): void {
    if (Atomics.compareExchange(this.#words, STATE, FREE, WRITING) !== FREE) return;
    const bytes = new TextEncoder().encode(reason).subarray(0, this.#text.length);
    this.#text.set(bytes);
    Atomics.store(this.#words, RANK, rank);
    Atomics.store(
      this.#words,
      LOSS,
      loss === undefined ? NO_LOSS : loss.dead === undefined ? ALL_LIVE : DEAD + loss.dead,
    );
    Atomics.store(this.#words, LENGTH, bytes.length);
    Atomics.store(this.#words, STATE, READY);
  }

  /** The loss of which this rank is to tell what it waits in; none when it asks again. */
  untoldLoss(): Loss | undefined {
    const loss = this.cause === undefined ? NO_LOSS : Atomics.load(this.#words, LOSS);
    if (this.#told || loss === NO_LOSS) return undefined;
    this.#told = true;
    return { dead: loss === ALL_LIVE ? undefined : loss - DEAD };
  }

  /** Who stopped the world, by world rank or -1 for who started the ranks, and why; or `undefined`. */
  get cause(): { readonly rank: number; readonly reason: string } | undefined {
    if (Atomics.load(this.#words, STATE) === FREE) return undefined;
    // A rank may die between claiming the word and filling in the text.
    for (let i = 0; i < 1e6 && Atomics.load(this.#words, STATE) !== READY; i++);
    const length = Atomics.load(this.#words, LENGTH);
    return {
      rank: Atomics.load(this.#words, RANK),
      reason: new TextDecoder().decode(this.#text.slice(0, length)),
    };
  }
}
