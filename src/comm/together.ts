/**
 * How a failure of some ranks becomes a failure of all: each tells the others what became of what it did, so that none
 * goes on to wait for one that has failed.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ControlPlane } from "./control_plane.ts";

/** Runs an action and keeps what it throws. */
export function attempt<T>(action: () => T): PromiseSettledResult<T> {
  try {
    return { status: "fulfilled", value: action() };
  } catch (reason) {
    return { status: "rejected", reason };
  }
}

/** The outcome of an action that succeeded on all ranks. */
export interface Outcome<T> {
  readonly value: T;
  /** What each rank noted. */
  readonly notes: readonly string[];
}

/**
 * Tells every rank what became of this one's action. Collective, whatever became of it.
 *
 * @param noteOf what the ranks tell each other of a success
 * @throws what this rank's action threw; where it succeeded, a {@link CollectiveError} naming the failed ranks and what
 * they said, once for all ranks that said the same
 */
export function exchangeOutcomes<T>(
  control: ControlPlane,
  outcome: PromiseSettledResult<T>,
  noteOf: (value: T) => string = () => "",
): Outcome<T> {
  const text = outcome.status === "fulfilled" ? `+${noteOf(outcome.value)}` : `-${String(outcome.reason)}`;
  let said: readonly string[];
  try {
    said = control.exchange(new TextEncoder().encode(text)).map((bytes) => new TextDecoder().decode(bytes));
  } catch (error) {
    // The rank that failed knows best: its own error has the path and the cause.
    throw outcome.status === "rejected" ? outcome.reason : error;
  }
  if (outcome.status === "rejected") throw outcome.reason;
  const failures = Map.groupBy(control.worldRanks, (_, rank) => at(said, rank, "outcome of rank"));
  for (const message of said) if (message.startsWith("+")) failures.delete(message);
  const [stoppedBy] = [...failures.values()].flat();
  if (stoppedBy === undefined) return { value: outcome.value, notes: said.map((message) => message.slice(1)) };
  const list = [...failures].map(([message, ranks]) => `rank ${ranks.join(", ")} failed: ${message.slice(1)}`);
  throw control.failure(list.join("; "), stoppedBy);
}

/** What an action that succeeded on all ranks gave and holds. */
export interface Acquired<T> extends Outcome<T> {
  /** Gives up what the action took. */
  readonly kept: DisposableStack;
}

/**
 * Runs an action that takes resources on every rank. Collective. If it fails on any, no rank keeps what it took.
 *
 * @param action puts what undoes it on the stack
 * @param noteOf what the ranks tell each other of a success
 */
export function acquire<T>(
  control: ControlPlane,
  action: (kept: DisposableStack) => T,
  noteOf?: (value: T) => string,
): Acquired<T> {
  using taken = new DisposableStack();
  const settled = exchangeOutcomes(control, attempt(() => action(taken)), noteOf);
  return { ...settled, kept: taken.move() };
}
