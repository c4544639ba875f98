/**
 * The options without which no checkpoint is saved or loaded.
 *
 * @module
 */
import { ArgumentError } from "../../errors.ts";
import { valueText } from "../../words.ts";
import { type Ranks, requireRanks } from "../format/ranks.ts";
import type { NamedParts } from "../state_dict/state_dict.ts";

/** The options that every save and every load has. */
interface RequiredOptions {
  readonly directory: string;
  readonly model: NamedParts;
  readonly group: Ranks;
}

/**
 * Refuses options that were left out or are something else, which types alone would find.
 *
 * @param what is not done, e.g. `load a checkpoint`
 * @throws {ArgumentError} naming the option and its value
 */
export function requireOptionsOf(what: string, { directory, model, group }: RequiredOptions): void {
  const refuse = (name: string, value: unknown, expected: string): never => {
    throw new ArgumentError(`Cannot ${what} with ${name} ${valueText(value)}: expected ${expected}`);
  };
  if (typeof directory !== "string") refuse("directory", directory, "a path");
  if (typeof model?.namedParameters !== "function") refuse("model", model, "a Module");
  requireRanks(what, group);
}
