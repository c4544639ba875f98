/**
 * Decides how a run goes on after its ranks have ended: with which number of ranks, or not at all. Starting them is left to
 * `elastic.ts`.
 *
 * @module
 */
import { countOf, rankList } from "../words.ts";
import { headOf, type RankFailure } from "./failures.ts";
import type { LaunchOutcome } from "./supervisor.ts";

/** The state of a run between two starts of its ranks. */
export interface WorldState {
  /** Ranks of the last start. */
  readonly numRanks: number;
  /** Failures after which ranks were started again. */
  readonly restarts: number;
  /** The error of the failure before the last start; undefined if there was none, or no rank said one. */
  readonly lastError: string | undefined;
}

/** The limits of a run. */
export interface WorldLimits {
  readonly fewestRanks: number;
  readonly mostRanks: number;
  readonly maxRestarts: number;
}

/** The next start of a run's ranks, or its end. */
export type NextWorld =
  | { readonly kind: "end"; readonly why: string | undefined }
  | {
    readonly kind: "start";
    readonly state: WorldState;
    readonly why: string;
    /** What has ended the last start, for the ranks of the next one. */
    readonly cause: string;
  };

/** Errors by which a rank tells that another one has failed. */
const FOLLOWING = ["CollectiveError", "RendezvousError"];

/** Ranks that were lost: those that ended without an error about another rank. */
function lostRanks(failures: readonly RankFailure[]): readonly RankFailure[] {
  const lost = failures.filter(({ record }) => record === undefined || !FOLLOWING.includes(record.name));
  return lost.length > 0 ? lost : failures.slice(0, 1);
}

/**
 * The number of ranks to go on with.
 *
 * @param left ranks that are left
 * @param sizes numbers of ranks that the batch can be divided among; undefined if they are not known
 */
export function ranksToGoOnWith(left: number, limits: WorldLimits, sizes: readonly number[] | undefined): number {
  const fits = (most: number): number | undefined => {
    const able = (sizes ?? [most]).filter((size) => size >= limits.fewestRanks && size <= most);
    return able.length === 0 ? undefined : Math.max(...able);
  };
  // With fewer than asked for, lost ranks come back at once.
  return fits(left) ?? fits(limits.mostRanks) ?? limits.mostRanks;
}

/** Decides by the end of the last ranks. */
export function nextWorld(state: WorldState, limits: WorldLimits, outcome: LaunchOutcome): NextWorld {
  const { failures, words, signal, exitCode } = outcome;
  if (signal !== undefined || (failures.length === 0 && !words.regroups)) return { kind: "end", why: undefined };
  if (failures.length === 0) {
    const numRanks = ranksToGoOnWith(limits.mostRanks, limits, words.worldSizes);
    return {
      kind: "start",
      state: { ...state, numRanks, lastError: undefined },
      why: `going on with ${countOf(numRanks, "rank")}, as ranks come in`,
      cause: "as ranks come in",
    };
  }
  const lost = lostRanks(failures);
  const error = failures[0]?.record === undefined ? undefined : headOf(failures[0]);
  if (failures[0]?.record?.name === "ConfigError") return { kind: "end", why: undefined };
  if (state.restarts >= limits.maxRestarts) {
    return {
      kind: "end",
      why: `not restarted: --max-restarts ${limits.maxRestarts} is used up`,
    };
  }
  if (error !== undefined && error === state.lastError) {
    return { kind: "end", why: "not restarted: the same error came twice, and would come again" };
  }
  const left = limits.fewestRanks === limits.mostRanks ? limits.mostRanks : state.numRanks - lost.length;
  const numRanks = ranksToGoOnWith(left, limits, words.worldSizes);
  const restarts = state.restarts + 1;
  const who = numRanks >= state.numRanks
    ? countOf(numRanks, "rank")
    : `${numRanks} of ${countOf(state.numRanks, "rank")}`;
  return {
    kind: "start",
    state: { numRanks, restarts, lastError: exitCode === 0 ? undefined : error },
    why: `going on with ${who} (restart ${restarts} of ${limits.maxRestarts})`,
    cause: `as ${rankList(lost.map(({ rank }) => rank))} ${lost.length === 1 ? "is" : "are"} lost`,
  };
}
