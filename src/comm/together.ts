/**
 * How a failure of some ranks becomes a failure of all: each tells the others what became of what it did, so that none
 * goes on to wait for one that has failed.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ControlPlane } from "./control_plane.ts";

/** What became of an action on this rank. */
export type Outcome<T> = { readonly value: T } | { readonly error: unknown };

/** Runs an action and keeps what it throws. */
export function attempt<T>(action: () => T): Outcome<T> {
  try {
    return { value: action() };
  } catch (error) {
    return { error };
  }
}

/** What an action that succeeded on all ranks gave. */
export interface Settled<T> {
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
export function settle<T>(
  control: ControlPlane,
  outcome: Outcome<T>,
  noteOf: (value: T) => string = () => "",
): Settled<T> {
  const text = "value" in outcome ? `+${noteOf(outcome.value)}` : `-${String(outcome.error)}`;
  let said: readonly string[];
  try {
    said = control.exchange(new TextEncoder().encode(text)).map((bytes) => new TextDecoder().decode(bytes));
  } catch (error) {
    // The rank that failed knows best: its own error has the path and the cause.
    throw "error" in outcome ? outcome.error : error;
  }
  if ("error" in outcome) throw outcome.error;
  const failures = new Map<string, number[]>();
  for (const [rank, message] of said.entries()) {
    if (message.startsWith("+")) continue;
    failures.set(message, [...failures.get(message) ?? [], at(control.worldRanks, rank, "world rank of rank")]);
  }
  const [stoppedBy] = [...failures.values()].flat();
  if (stoppedBy === undefined) return { value: outcome.value, notes: said.map((message) => message.slice(1)) };
  const list = [...failures].map(([message, ranks]) => `rank ${ranks.join(", ")} failed: ${message.slice(1)}`);
  throw control.failure(list.join("; "), stoppedBy);
}

/** What an action that succeeded on all ranks gave and holds. */
export interface Acquired<T> extends Settled<T> {
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
  const settled = settle(control, attempt(() => action(taken)), noteOf);
  return { ...settled, kept: taken.move() };
}
