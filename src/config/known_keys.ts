/**
 * Options that a program gives by name. Types are not checked where programs run, so a key in PyTorch's spelling, or a mistyped
 * one, would leave the default without a word.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { valueText } from "../words.ts";
import { didYouMean } from "./nearest.ts";

/** Every key of some options: `tsc` refuses a list that lacks one. */
export type KnownKeys<T> = Readonly<Record<keyof Required<T>, true>>;

/** PyTorch's names of options whose names here are not the same in another spelling. */
const OTHER_NAMES: ReadonlyMap<string, string> = new Map([
  ["lr", "learningRate"],
  ["mpPolicy", "precision"],
  ["pDrop", "p"],
  ["numWarmupSteps", "warmupSteps"],
  ["numTrainingSteps", "steps"],
  ["ignoredParams", "ignoredParameters"],
  ["shardPlacementFn", "shardPlacement"],
  ["bucketCapMb", "bucketBytes"],
  ["maxLength", "maxNewTokens"],
  ["eosTokenId", "eosId"],
]);

/**
 * Refuses what is no object of options, such as a number or an array, whose settings nothing would read.
 *
 * @param what is not done, e.g. `make an AdamW`
 * @param names the options that there are
 * @throws {ArgumentError} with the value and the options
 */
export function requireOptions(what: string, options: unknown, names: readonly string[]): void {
  if (typeof options === "object" && options !== null && !Array.isArray(options)) return;
  throw new ArgumentError(
    `Cannot ${what} with ${valueText(options)}: expected an object of options, of ${names.join(", ")}`,
  );
}

/**
 * Refuses a key that nothing reads. One whose value is undefined is as good as none.
 *
 * @param what is not done, e.g. `make an AdamW`
 * @throws {ArgumentError} naming the key, and the one that was probably meant
 */
export function requireKnownKeys<T extends object>(what: string, options: T, known: KnownKeys<T>): void {
  const names = Object.keys(known);
  requireOptions(what, options, names);
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined || names.includes(key)) continue;
    const spelled = key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
    const meant = OTHER_NAMES.get(spelled) ?? spelled;
    const hint = names.includes(meant) ? `. Did you mean '${meant}'?` : didYouMean(meant, names);
    throw new ArgumentError(`Cannot ${what} with '${key}': expected ${names.join(", ")}${hint}`);
  }
}
