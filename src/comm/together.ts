/**
 * Actions that fail on all ranks if they fail on any: each rank hands the others the outcome of its own action, so that none
 * goes on and waits for a rank that has failed.
 *
 * @module
 */
import type { ControlPlane } from "./control_plane.ts";

/** Calls an action and keeps its result or error. */
export function attempt<T>(action: () => T): PromiseSettledResult<T> {
  try {
    return { status: "fulfilled", value: action() };
  } catch (reason) {
    return { status: "rejected", reason };
  }
}

/** The outcome of one rank's action, as ranks exchange it. */
type OutcomeRecord = { readonly note: string } | { readonly error: string };

/** The outcome of an action that succeeded on all ranks. */
export interface Outcome<T> {
  readonly value: T;
  /** Note of each rank. */
  readonly notes: readonly string[];
}

/**
 * Exchanges the outcomes of all ranks' actions. Collective, also for a rank whose action failed.
 *
 * @param noteOf the text that each rank gives the others when it has succeeded
 * @throws the error of this rank's action; if that succeeded, a {@link CollectiveError} naming the failed ranks and their
 * errors, with one entry for all ranks of the same error
 */
export function exchangeOutcomes<T>(
  control: ControlPlane,
  outcome: PromiseSettledResult<T>,
  noteOf: (value: T) => string = () => "",
): Outcome<T> {
  const own: OutcomeRecord = outcome.status === "fulfilled"
    ? { note: noteOf(outcome.value) }
    : { error: String(outcome.reason) };
  let records: readonly OutcomeRecord[];
  try {
    records = control.exchange(new TextEncoder().encode(JSON.stringify(own)))
      .map((bytes): OutcomeRecord => JSON.parse(new TextDecoder().decode(bytes)));
  } catch (error) {
    // The rank that failed knows best: its own error has the path and the cause.
    throw outcome.status === "rejected" ? outcome.reason : error;
  }
  if (outcome.status === "rejected") throw outcome.reason;
  const failed = records.flatMap((record, rank) =>
    "error" in record ? [{ rank: control.worldRank(rank), error: record.error }] : []
  );
  const [first] = failed;
  if (first === undefined) {
    return {
      value: outcome.value,
      notes: records.flatMap((one) => "note" in one ? one.note : []),
    };
  }
  const list = [...Map.groupBy(failed, ({ error }) => error)]
    .map(([error, ranks]) => `rank ${ranks.map(({ rank }) => rank).join(", ")} failed: ${error}`);
  throw control.failure(list.join("; "), first.rank);
}

/** The value and resources of an action that succeeded on all ranks. */
export interface Acquired<T> extends Outcome<T> {
  /** Releases what the action took. */
  readonly kept: DisposableStack;
}

/**
 * Calls an action that takes resources on every rank. Collective. If it fails on any rank, no rank keeps what it took.
 *
 * @param action puts what undoes it on the stack
 * @param noteOf the text that each rank gives the others when it has succeeded
 */
export function acquire<T>(
  control: ControlPlane,
  action: (kept: DisposableStack) => T,
  noteOf?: (value: T) => string,
): Acquired<T> {
  using taken = new DisposableStack();
  const outcome = exchangeOutcomes(control, attempt(() => action(taken)), noteOf);
  return { ...outcome, kept: taken.move() };
}
