/**
 * A set of small integers that finds the next one.
 *
 * @module
 */
import { at } from "../../at.ts";

/** Integers from 0 up to a limit, exclusive. Levels of bits above them tell which words are not empty. */
export class NumberSet {
  readonly #levels: readonly Uint32Array[];

  /** Makes an empty set of integers below `limit`. */
  constructor(limit: number) {
    const levels: Uint32Array[] = [];
    let words = limit;
    do {
      words = Math.ceil(words / 32);
      levels.push(new Uint32Array(Math.max(1, words)));
    } while (words > 1);
    this.#levels = levels;
  }

  /** Adds a number. */
  add(value: number): void {
    let place = value;
    for (const words of this.#levels) {
      words[place >>> 5] = at(words, place >>> 5, "word") | 1 << (place & 31);
      place >>>= 5;
    }
  }

  /** Takes a number out. */
  delete(value: number): void {
    let place = value;
    for (const words of this.#levels) {
      const left = at(words, place >>> 5, "word") & ~(1 << (place & 31));
      words[place >>> 5] = left;
      if (left !== 0) return;
      place >>>= 5;
    }
  }

  /** The smallest number in it from `least` on; undefined if there is none. */
  next(least: number): number | undefined {
    let place = least;
    for (let level = 0; level < this.#levels.length; level++) {
      const words = at(this.#levels, level, "level");
      if (place >>> 5 >= words.length) return undefined;
      const left = at(words, place >>> 5, "word") & -1 << (place & 31);
      if (left !== 0) return this.#lowest(level, (place >>> 5) * 32 + lowestBit(left));
      place = (place >>> 5) + 1;
    }
    return undefined;
  }

  /** The smallest number below a bit of a level. */
  #lowest(level: number, bit: number): number {
    let place = bit;
    for (let below = level - 1; below >= 0; below--) {
      place = place * 32 + lowestBit(at(at(this.#levels, below, "level"), place, "word"));
    }
    return place;
  }
}

/** The index of the lowest set bit of a word. */
function lowestBit(word: number): number {
  return 31 - Math.clz32(word & -word);
}
