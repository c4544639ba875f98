/**
 * Sums of float32 numbers without rounding: the same bits in whatever order, and on however many ranks, they are added.
 *
 * @module
 */
import { at } from "../at.ts";

/** Bits of a float32's fraction, and the power of two of the last one where the exponent's field is 0 or 1. */
const FRACTION_BITS = 23;
const LOWEST_POWER = -149;
const EXPONENTS = 255;

/**
 * A sum of float32 numbers that are not negative. It is kept as whole numbers by exponent, each exact up to 2^53, which takes 2^29
 * numbers of one exponent.
 */
export class ExactSum {
  /** For each exponent the sum of the significands. */
  readonly #parts = new Float64Array(EXPONENTS);
  readonly #word = new Float32Array(1);
  readonly #bits = new Uint32Array(this.#word.buffer);
  #isFinite = true;

  /** Adds a number. One that is not finite, or negative, makes the sum NaN. */
  add(value: number): void {
    this.#word[0] = value;
    const bits = at(this.#bits, 0, "word");
    const exponent = bits >>> FRACTION_BITS;
    if (exponent >= EXPONENTS) {
      if (bits !== 0x80000000) this.#isFinite = false; // -0 adds nothing
      return;
    }
    const fraction = bits & (2 ** FRACTION_BITS - 1);
    const [place, significand] = exponent === 0 ? [1, fraction] : [exponent, fraction + 2 ** FRACTION_BITS];
    this.#parts[place] = at(this.#parts, place, "part") + significand;
  }

  /** The sum in units of 2^-149, as a text that {@link totalOf} adds; `NaN` if a number was not finite. */
  toString(): string {
    if (!this.#isFinite) return "NaN";
    let sum = 0n;
    for (const [place, part] of this.#parts.entries()) {
      if (part !== 0) sum += BigInt(part) << BigInt(place - 1);
    }
    return String(sum);
  }
}

/** Adds sums of several ranks; the nearest number to the total. */
export function totalOf(sums: readonly string[]): number {
  if (sums.includes("NaN")) return NaN;
  const sum = sums.reduce((total, text) => total + BigInt(text), 0n);
  return Number(sum) * 2 ** LOWEST_POWER;
}
