/**
 * The parts of a process group that files need, so that a process on its own can read and write them too.
 *
 * @module
 */
import { FINISHED } from "../../comm/data_plane.ts";
import type { ProcessGroup } from "../../comm/process_group.ts";
import { ArgumentError } from "../../errors.ts";
import { valueText } from "../../words.ts";

/** The ranks that read or write something together. */
export type Ranks = Pick<ProcessGroup, "rank" | "size" | "agree" | "together" | "exchangeText" | "broadcast">;

/** A process on its own. */
export const ALONE: Ranks = {
  rank: 0,
  size: 1,
  agree: (_what, action) => action(),
  together: async (_what, action) => await action(),
  exchangeText: (text) => [text],
  broadcast: () => FINISHED,
};

/**
 * Refuses what is no group of ranks.
 *
 * @param what is not done, e.g. `save a model`
 * @throws {ArgumentError} with the value
 */
export function requireRanks(what: string, ranks: unknown): void {
  const isObject = typeof ranks === "object" && ranks !== null;
  if (isObject && "together" in ranks && typeof ranks.together === "function") return;
  const expected = isObject && "group" in ranks
    ? "the group itself, not in an object"
    : "the ranks that hold the model";
  throw new ArgumentError(`Cannot ${what} with group ${valueText(ranks)}: expected ${expected}, e.g. run.group`);
}
