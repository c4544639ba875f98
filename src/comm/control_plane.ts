/**
 * The contract of a control plane: who is there, who lives, what they call, and small host bytes between them. It moves
 * no tensors; that is the business of a data plane, which is built on it.
 *
 * Everything here is synchronous and needs no event loop: a rank that waits runs no timers and no signal handlers, so
 * {@link ControlPlane.wait} itself is the watchdog.
 *
 * @module
 */
import type { CollectiveError } from "../errors.ts";
import type { Call } from "./call.ts";

/** What the ranks of a group know of each other. */
export interface ControlPlane {
  /** The group's name, for messages. */
  readonly name: string;
  /** This rank's place in the group. */
  readonly rank: number;
  readonly size: number;
  /** Rank in the first group, of each rank of this one: what messages name. */
  readonly worldRanks: readonly number[];
  /** Seconds after which a wait for a live rank fails. */
  timeoutSeconds: number;
  /**
   * Tells the others what this rank calls next, and compares it with what they have called. Never waits, so a
   * difference may be found later, by another rank or in a wait; it is found before a wait times out.
   *
   * @throws {CollectiveError} if the ranks call different things, naming the calls, or if one has stopped all
   */
  announce(call: Call): void;
  /** Gives every rank the host bytes of each, of any and unequal lengths; returns once all have called it. */
  exchange(bytes: Uint8Array): readonly Uint8Array[];
  /**
   * Returns once `ready()` holds. For data planes, whose every wait must end when a rank dies, stops all, or differs.
   *
   * @param ready looked at again whenever the awaited rank calls {@link notify}, and now and then besides
   * @param stage what is waited for, e.g. `contributing`
   * @param rank who makes it true, as a part of the present call; without, any rank may
   * @throws {CollectiveError} if a rank died, left, is late beyond the timeout, or calls something else
   */
  wait(ready: () => boolean, stage: string, rank?: number): void;
  /** Wakes the ranks that wait for this one. */
  notify(): void;
  /** Gives a line to who reads what this rank reports. */
  report(text: string): void;
  /** An error about the present call. */
  failure(detail: string, stoppedBy?: number): CollectiveError;
  /** A group of some of the ranks. Collective over all of this one; `ranks` is this rank's own list, ascending. */
  split(ranks: readonly number[], name: string): ControlPlane;
  /** Makes every rank's present and future waits fail with `reason`; the first reason is kept. Never blocks. */
  abort(reason: string): void;
  /** Leaves the group: a rank that still waits for this one fails and says so. Never blocks. */
  dispose(): void;
}

/** How a rank waits. */
export interface ControlOptions {
  /** Seconds after which a wait for a live rank fails; default 600. */
  readonly timeoutSeconds?: number | undefined;
  /** Gets a line about what a user should know, e.g. that a live rank is late. */
  readonly report?: ((text: string) => void) | undefined;
  /** Seconds after which a live rank counts as late; default 10. */
  readonly reportSeconds?: number | undefined;
}
