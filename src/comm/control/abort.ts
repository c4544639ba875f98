/**
 * The abort word of a world: set once, by the first rank that fails, with its reason.
 *
 * @module
 */
import { blockFor } from "../../runtime/clock.ts";

// Its words: who set it, as rank plus 2 so that -1 has a number too; 0 while nobody has. Then the bytes of the text plus 1;
// 0 while it is not filled in.
const SETTER = 0;
const LENGTH = 1;
const LOSS = 2;
const TEXT = 8;
const TEXT_WORDS = 1024;
/** Words of the abort area. */
export const ABORT_WORDS: number = TEXT + TEXT_WORDS;

/** How long a rank that sets the area may be off its core before its text is given up. */
const TEXT_MS = 2000;

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
  #reported = false;

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
    const bytes = new TextEncoder().encode(reason).subarray(0, this.#text.length);
    if (Atomics.compareExchange(this.#words, SETTER, 0, rank + 2) !== 0) return;
    this.#text.set(bytes);
    const kind = loss === undefined ? NO_LOSS : loss.dead === undefined ? ALL_LIVE : DEAD + loss.dead;
    Atomics.store(this.#words, LOSS, kind);
    Atomics.store(this.#words, LENGTH, bytes.length + 1);
  }

  /** The loss of which this rank is to tell what it waits in; none when it asks again. */
  unreportedLoss(): Loss | undefined {
    const loss = this.cause === undefined ? NO_LOSS : Atomics.load(this.#words, LOSS);
    if (this.#reported || loss === NO_LOSS) return undefined;
    this.#reported = true;
    return { dead: loss === ALL_LIVE ? undefined : loss - DEAD };
  }

  /** Who stopped the world, by world rank or -1 for who started the ranks, and why; or `undefined`. */
  get cause(): { readonly rank: number; readonly reason: string } | undefined {
    const setter = Atomics.load(this.#words, SETTER);
    if (setter === 0) return undefined;
    // A rank may lose its core, or die, before it has filled in the text.
    for (let ms = 0; ms < TEXT_MS && Atomics.load(this.#words, LENGTH) === 0; ms++) blockFor(1);
    const length = Atomics.load(this.#words, LENGTH);
    const text = length === 0
      ? "it ended before it told why"
      : new TextDecoder().decode(this.#text.slice(0, length - 1));
    return { rank: setter - 2, reason: text };
  }
}
