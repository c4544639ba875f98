/**
 * The one rule for numbers that come from the host into a dtype. An integer dtype takes integers of its range; anything else is
 * refused by value, place, dtype and range, and nothing is wrapped, rounded or taken for 0.
 *
 * @module
 */
import { bfloat16, type DType, float16, float32, int32, int64, uint8 } from "./dtype.ts";
import { ArgumentError } from "./errors.ts";

/** Least and largest value of integer dtypes. int64 takes what a number of the host holds. */
const RANGES: ReadonlyMap<DType, readonly [least: number, largest: number]> = new Map([
  [uint8, [0, 255]],
  [int32, [-(2 ** 31), 2 ** 31 - 1]],
  [int64, [Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER]],
]);

/** The least magnitudes that float dtypes round to infinity. */
const OVERFLOWS: ReadonlyMap<DType, number> = new Map([
  [float16, 65520],
  [bfloat16, 2 ** 128 - 2 ** 119],
  [float32, 2 ** 128 - 2 ** 103],
]);

/** True if a dtype can hold a number: a float dtype any number, an integer dtype the integers of its range. */
export function holds(dtype: DType, value: number): boolean {
  const range = RANGES.get(dtype);
  return range === undefined || (Number.isInteger(value) && value >= range[0] && value <= range[1]);
}

/** True if a dtype makes a finite number infinite. */
export function overflows(dtype: DType, value: number): boolean {
  const limit = OVERFLOWS.get(dtype);
  return limit !== undefined && Number.isFinite(value) && Math.abs(value) >= limit;
}

/** The first of some values that a dtype makes infinite. */
export function firstOverflow(dtype: DType, values: Float32Array): number | undefined {
  const limit = OVERFLOWS.get(dtype) ?? Infinity;
  return values.find((value) => Math.abs(value) >= limit && Number.isFinite(value));
}

/** True if a value is a number from `least` to `most`. Null and text are not numbers, though comparisons convert them. */
export function isWithin(value: unknown, least: number, most: number = Infinity): value is number {
  return typeof value === "number" && value >= least && value <= most;
}

/** The numbers that a dtype holds, for messages. */
function rangeText(dtype: DType): string {
  const range = RANGES.get(dtype);
  return range === undefined ? "numbers" : `integers from ${range[0]} to ${range[1]}`;
}

/**
 * Refuses what a dtype does not hold.
 *
 * @param what is not done, e.g. `fill a tensor`
 * @param index the value's place among others
 * @throws {ArgumentError} if the value is no number, or an integer dtype does not hold it
 */
export function requireHeld(dtype: DType, value: unknown, what: string, index?: number): void {
  if (typeof value === "number" && holds(dtype, value)) return;
  const shown = typeof value === "bigint"
    ? `the bigint ${value}`
    : typeof value === "string"
    ? `"${value}"`
    : String(value);
  const place = index === undefined ? shown : `${shown} at index ${index}`;
  const remedy = typeof value === "number"
    ? "round it, bring it into the range, or use another dtype"
    : typeof value === "bigint"
    ? "convert it by Number()"
    : "give a number";
  throw new ArgumentError(`Cannot ${what} with ${place}: ${dtype.name} holds ${rangeText(dtype)}; ${remedy}`);
}

/** Refuses the first of some values that a dtype does not hold. See {@link requireHeld}. */
export function requireAllHeld(dtype: DType, values: ArrayLike<unknown>, what: string): void {
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (typeof value !== "number" || !holds(dtype, value)) requireHeld(dtype, value, what, i);
  }
}
