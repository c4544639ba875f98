/**
 * Host numbers that ranks exchange and sum.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError } from "../errors.ts";
import { valueText } from "../words.ts";

/** The bytes of numbers, as float64. @throws {ArgumentError} with the unit and what is no list of numbers */
export function numberBytes(values: readonly number[], unit: string): Uint8Array {
  if (Array.isArray(values) && values.every((value) => typeof value === "number")) {
    return new Uint8Array(Float64Array.from(values).buffer);
  }
  throw new ArgumentError(`Cannot sum ${valueText(values)} for '${unit}': expected a list of numbers`);
}

/** The sums of `count` numbers over ranks, in float64 and in the order of the ranks' bytes. */
export function sumOfNumbers(parts: readonly Uint8Array[], count: number): number[] {
  const totals = new Float64Array(count);
  for (const part of parts) {
    const theirs = new Float64Array(part.buffer, part.byteOffset, count);
    theirs.forEach((value, i) => totals[i] = at(totals, i, "sum") + value);
  }
  return [...totals];
}
