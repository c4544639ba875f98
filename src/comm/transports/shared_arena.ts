/**
 * An allocator whose state lies in the shared memory that it hands out, so that any rank can allocate and the last
 * holder of a block frees it. First fit; for windows and groups, which are few and long-lived, not for tensors.
 *
 * @module
 */
import { InternalError, OutOfMemoryError } from "../../errors.ts";

const LOCK = 0;
const COUNT = 1;
const ENTRIES = 2;
// An entry: first unit, units, holders.
const ENTRY_WORDS = 3;
const MAX_BLOCKS = 4096;
/** Bytes of a block's granule. */
const UNIT = 256;
/** Words that the allocator needs for itself. */
export const ARENA_WORDS: number = ENTRIES + MAX_BLOCKS * ENTRY_WORDS;

/** The blocks of one stretch of shared memory. */
export class SharedArena {
  readonly #words: Int32Array;
  readonly #begin: number;
  readonly #units: number;

  /**
   * @param words {@link ARENA_WORDS} shared words, zero at first
   * @param begin first byte to hand out, a multiple of 256
   * @param byteLength how many there are
   */
  constructor(words: Int32Array, begin: number, byteLength: number) {
    this.#words = words;
    this.#begin = begin;
    this.#units = Math.floor(byteLength / UNIT);
  }

  /**
   * A block that is free again after `holders` calls of {@link release}. Contents are whatever was there.
   *
   * @param owner what it is for: named when memory runs out
   * @returns the byte where it begins
   * @throws {OutOfMemoryError} if there is no room
   */
  allocate(byteLength: number, holders: number, owner: string): number {
    const units = Math.max(1, Math.ceil(byteLength / UNIT));
    return this.#locked(() => {
      const words = this.#words;
      const count = this.#get(COUNT);
      let start = 0;
      let index = 0;
      let used = 0;
      for (; index < count; index++) {
        const at = ENTRIES + index * ENTRY_WORDS;
        if (this.#get(at) - start >= units) break;
        start = this.#get(at) + this.#get(at + 1);
      }
      if (start + units > this.#units || count === MAX_BLOCKS) {
        for (let i = 0; i < count; i++) used += this.#get(ENTRIES + i * ENTRY_WORDS + 1);
        throw new OutOfMemoryError(
          "the loopback arena",
          units * UNIT,
          used * UNIT,
          this.#units * UNIT,
          `It was for ${owner}; ${
            (this.#units - used) * UNIT
          } bytes are free. Raise 'arenaBytes' of createLoopbackWorld()`,
        );
      }
      const at = ENTRIES + index * ENTRY_WORDS;
      words.copyWithin(at + ENTRY_WORDS, at, ENTRIES + count * ENTRY_WORDS);
      words[at] = start;
      words[at + 1] = units;
      words[at + 2] = holders;
      words[COUNT] = count + 1;
      return this.#begin + start * UNIT;
    });
  }

  /** One holder of the block needs it no longer; the last one frees it. */
  release(begin: number): void {
    const unit = (begin - this.#begin) / UNIT;
    this.#locked(() => {
      const words = this.#words;
      const count = this.#get(COUNT);
      for (let i = 0; i < count; i++) {
        const at = ENTRIES + i * ENTRY_WORDS;
        if (this.#get(at) !== unit) continue;
        const holders = this.#get(at + 2) - 1;
        words[at + 2] = holders;
        if (holders > 0) return;
        words.copyWithin(at, at + ENTRY_WORDS, ENTRIES + count * ENTRY_WORDS);
        words[COUNT] = count - 1;
        return;
      }
      throw new InternalError(`released byte ${begin} of the shared arena, where no block begins`);
    });
  }

  #get(index: number): number {
    return this.#words[index] ?? 0;
  }

  #locked<T>(body: () => T): T {
    const words = this.#words;
    for (let tries = 0; Atomics.compareExchange(words, LOCK, 0, 1) !== 0; tries++) {
      // The holder does a few hundred instructions; only one that was terminated keeps it longer.
      if (tries > 2000) throw new InternalError("the shared arena's lock is held by a rank that is gone");
      Atomics.wait(words, LOCK, 1, 1);
    }
    try {
      return body();
    } finally {
      Atomics.store(words, LOCK, 0);
      Atomics.notify(words, LOCK, 1);
    }
  }
}
