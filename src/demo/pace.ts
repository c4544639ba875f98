/**
 * The pace of a demo's ranks: a page pauses them, lets them go on by one moment of the trace or by one step, or sets them free.
 *
 * Note [Moments]: every rank counts the moments of its trace at which it may be held. All ranks make the same calls, so equal numbers
 * are the same moment. A rank goes on from moment n once the page allows n. As a page cannot block, it alone raises the numbers, and
 * the ranks alone wait.
 *
 * @module
 */

import { at } from "../at.ts";

const ALLOWED = 0;
const ALLOWED_STEPS = 1;
const KILLED = 2;
const RANKS = 3;
/** Words of a rank: the moment that it has come to, and the last one that it has passed. */
const RANK_WORDS = 2;
/** More moments than a training has. */
const ALL = 2 ** 31 - 1;

/** Shared words of a demo's pace. */
export class Pace {
  readonly words: Int32Array;

  /** @param words of {@link Pace.make} */
  constructor(words: Int32Array) {
    this.words = words;
  }

  /** The pace of `ranks` ranks, which may do nothing yet. */
  static make(ranks: number): Pace {
    return new Pace(new Int32Array(new SharedArrayBuffer((RANKS + RANK_WORDS * ranks) * 4)));
  }

  /**
   * Waits, on a rank, until its next moment is allowed.
   *
   * @param tell called before it waits
   */
  pass(rank: number, tell: () => void): void {
    const place = RANKS + RANK_WORDS * rank;
    const moment = Atomics.add(this.words, place, 1) + 1;
    for (let isTold = false;;) {
      this.#endIfKilled(rank);
      const allowed = Atomics.load(this.words, ALLOWED);
      if (allowed >= moment) break;
      if (!isTold) tell();
      isTold = true;
      Atomics.wait(this.words, ALLOWED, allowed);
    }
    Atomics.store(this.words, place + 1, moment);
  }

  /** Waits, on a rank, until a step is allowed. */
  passStep(step: number): void {
    for (;;) {
      const allowed = Atomics.load(this.words, ALLOWED_STEPS);
      if (allowed >= step) return;
      Atomics.wait(this.words, ALLOWED_STEPS, allowed);
    }
  }

  /**
   * Stops a rank for ever at its next moment. A browser ends a Worker that never returns to its events after two seconds only, and
   * until then it would train on.
   */
  kill(rank: number): void {
    Atomics.or(this.words, KILLED, 1 << rank);
  }

  #endIfKilled(rank: number): void {
    for (;;) {
      const killed = Atomics.load(this.words, KILLED);
      if ((killed & (1 << rank)) === 0) return;
      Atomics.wait(this.words, KILLED, killed);
    }
  }

  /** Lets the ranks take steps up to this one. */
  allowSteps(steps: number): void {
    this.#set(ALLOWED_STEPS, steps);
  }

  /** Lets the ranks go on without a stop. */
  free(): void {
    this.#set(ALLOWED, ALL);
  }

  /** Holds all ranks at the next moment of the rank that has passed most. */
  hold(): void {
    this.#set(ALLOWED, Math.max(0, ...this.#ranks().map(({ passed }) => passed)));
  }

  /**
   * Lets all ranks go on by one moment, if all of these wait.
   *
   * @returns false if some are on their way to the moment at which they are to wait
   */
  advance(ranks: readonly number[]): boolean {
    const allowed = Atomics.load(this.words, ALLOWED);
    const states = this.#ranks();
    if (!ranks.every((rank) => (at(states, rank, "rank's words").come) > allowed)) return false;
    this.#set(ALLOWED, allowed + 1);
    return true;
  }

  #ranks(): readonly { readonly come: number; readonly passed: number }[] {
    return Array.from({ length: (this.words.length - RANKS) / RANK_WORDS }, (_, rank) => {
      const place = RANKS + RANK_WORDS * rank;
      return { come: Atomics.load(this.words, place), passed: Atomics.load(this.words, place + 1) };
    });
  }

  #set(word: number, value: number): void {
    Atomics.store(this.words, word, value);
    Atomics.notify(this.words, word);
  }
}
