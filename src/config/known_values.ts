/**
 * Values of options that are words or switches. Types are not checked where programs run, so a mistyped word would count as the
 * other one, and any text as true.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { valueText } from "../words.ts";
import { didYouMean } from "./nearest.ts";

/**
 * Refuses a word that is none of those which there are.
 *
 * @param what is not done, e.g. `apply 'gelu'`
 * @param name of the option
 * @throws {ArgumentError} with the value and the words
 */
export function requireWord(what: string, name: string, value: unknown, known: readonly string[]): void {
  if (typeof value === "string" && known.includes(value)) return;
  const hint = typeof value === "string" ? didYouMean(value, known) : "";
  const list = known.map((word) => `'${word}'`).join(", ");
  throw new ArgumentError(`Cannot ${what} with ${name} ${valueText(value)}: expected one of ${list}${hint}`);
}

/**
 * Refuses what is neither true nor false. An option that is left out is as good as its default.
 *
 * @param what is not done, e.g. `clip gradients`
 * @param name of the option
 * @throws {ArgumentError} with the option and its value
 */
export function requireSwitch(what: string, name: string, value: boolean | undefined): void {
  if (value === undefined || typeof value === "boolean") return;
  throw new ArgumentError(`Cannot ${what} with ${name} ${valueText(value)}: expected true or false`);
}
