/**
 * Judges numbers against a reference: the worst deviation of each quantity, and what is allowed for it.
 *
 * @module
 */

/** The allowed error of a number, as a share of the scale of its quantity. */
export const RELATIVE = 2e-5;

/** One quantity: the element that deviates most, measured by what is allowed for it. */
export interface Quantity {
  readonly name: string;
  /** Its deviation; NaN, in JSON null, where a number is not finite. */
  readonly worst: number;
  /** The error that is allowed for it. */
  readonly allowed: number;
  readonly pass: boolean;
}

/** One number with its reference and what it may be off by. */
export type Judged = readonly [actual: number, expected: number, allowed: number];

/** Judges a quantity of which each number has its own allowance. */
export function judge(name: string, numbers: Iterable<Judged>): Quantity {
  let [worst, allowed, most] = [0, 0, -1];
  for (const [actual, expected, own] of numbers) {
    const deviation = Math.abs(actual - expected);
    const share = deviation === 0 ? 0 : deviation / own;
    if (Number.isNaN(share)) return { name, worst: NaN, allowed: own, pass: false };
    if (share > most) [worst, allowed, most] = [deviation, own, share];
  }
  return { name, worst, allowed, pass: most >= 0 && most <= 1 };
}

/** Judges numbers that are allowed a share of the largest of them, or twice how sensitive they are to rounding. */
export function judgeToScale(
  name: string,
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  sensitivity: number,
): Quantity {
  if (actual.length !== expected.length) return { name, worst: NaN, allowed: 0, pass: false };
  const scale = Array.from(expected).reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const allowed = Math.max(RELATIVE * scale, 2 * sensitivity);
  return judge(name, Array.from(expected, (value, i) => [actual[i] ?? NaN, value, allowed] as const));
}
