/**
 * The abort words of a world: set once, by the first rank that fails, with its reason.
 *
 * @module
 */
import { blockFor } from "../../runtime/clock.ts";

// SETTER: world rank that set the area, plus 2 so that -1 has a number too; 0 while it is not set.
// LENGTH: bytes of the text plus 1; 0 while the text is not filled in.
const SETTER = 0;
const LENGTH = 1;
const ABSENCE = 2;
const TEXT = 8;
const TEXT_WORDS = 1024;
/** The state of a rank whose process or Worker has ended without a word, as errors say it. */
export const DIED = "died (its process or Worker is gone)";

export const ABORT_WORDS: number = TEXT + TEXT_WORDS;

/** The end of a rank in a sentence about other ranks. @param end undefined if this rank has not heard how it ended */
export function endInShort(end: string | undefined): string {
  return end === DIED ? "died" : end ?? "is gone";
}

/** Longest time that a reader waits for the text. The rank that set the area may lose its core before it has written the text. */
const TEXT_MS = 2000;

// Values of ABSENCE; DEAD + r says that rank r is dead.
const NO_ABSENCE = 0;
const NOBODY_DEAD = 1;
const LATE = 2;
const DEAD = 3;

/**
 * Set if the abort was raised by a rank that waited: the awaited rank is dead, timed out or diverged. Then every rank reports where it
 * waits.
 */
export interface Absence {
  /** World rank that is dead; undefined if nobody is. */
  readonly dead: number | undefined;
  /** True if a rank has waited for the longest time that is set, and nobody is dead. */
  readonly isLate: boolean;
}

function kindOf({ dead, isLate }: Absence): number {
  if (dead !== undefined) return DEAD + dead;
  return isLate ? LATE : NOBODY_DEAD;
}

/** The shared words by which any rank stops all: every wait checks them. */
export class AbortArea {
  readonly #words: Int32Array;
  readonly #text: Uint8Array;
  #reported = false;

  /** @param words shared words of the world, zeros at first; the first {@link ABORT_WORDS} are used */
  constructor(words: Int32Array) {
    this.#words = words;
    this.#text = new Uint8Array(words.buffer, words.byteOffset + TEXT * 4, TEXT_WORDS * 4);
  }

  /**
   * Sets the area, unless it is set.
   *
   * @param absence see {@link Absence}
   */
  set(rank: number, reason: string, absence?: Absence): void {
    const bytes = new TextEncoder().encode(reason).subarray(0, this.#text.length);
    if (Atomics.compareExchange(this.#words, SETTER, 0, rank + 2) !== 0) return;
    this.#text.set(bytes);
    Atomics.store(this.#words, ABSENCE, absence === undefined ? NO_ABSENCE : kindOf(absence));
    Atomics.store(this.#words, LENGTH, bytes.length + 1);
  }

  /** The absence, which this rank reports with the call in which it waits. Returned once, then undefined. */
  unreportedAbsence(): Absence | undefined {
    const absence = this.cause === undefined ? NO_ABSENCE : Atomics.load(this.#words, ABSENCE);
    if (this.#reported || absence === NO_ABSENCE) return undefined;
    this.#reported = true;
    return { dead: absence >= DEAD ? absence - DEAD : undefined, isLate: absence === LATE };
  }

  /** True if a rank has stopped all because others were late. */
  get isLate(): boolean {
    return Atomics.load(this.#words, ABSENCE) === LATE;
  }

  /** World rank that stopped the world, or -1 for the thread that started the ranks, and the reason; undefined if none has. */
  get cause(): { readonly rank: number; readonly reason: string } | undefined {
    const setter = Atomics.load(this.#words, SETTER);
    if (setter === 0) return undefined;
    // A rank may lose its core, or die, before it has filled in the text.
    for (let ms = 0; ms < TEXT_MS && Atomics.load(this.#words, LENGTH) === 0; ms++) blockFor(1);
    const length = Atomics.load(this.#words, LENGTH);
    const text = length === 0
      ? "it ended before it gave a reason"
      : new TextDecoder().decode(this.#text.slice(0, length - 1));
    return { rank: setter - 2, reason: text };
  }
}
