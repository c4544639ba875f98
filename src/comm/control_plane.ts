/**
 * The contract of a control plane: who is there, who lives, what they call, and small host bytes between them. It moves
 * no tensors; that is the business of a data plane, which is built on it.
 *
 * Everything here is synchronous and needs no event loop: a rank that waits runs no timers and no signal handlers, so
 * {@link ControlPlane.wait} itself is the watchdog.
 *
 * @module
 */
import { at } from "../at.ts";
import { CollectiveError } from "../errors.ts";
import { type Call, describeCall } from "./call.ts";
import type { FlightRecord } from "./flight_record.ts";

/**
 * Who is in a group.
 *
 * @internal
 */
export interface Place {
  readonly name: string;
  readonly rank: number;
  /** Rank in the world, of each rank. */
  readonly worldRanks: readonly number[];
}

/** The place of a rank in a group of all. */
export function placeInWorld(rank: number, size: number): Place {
  return { name: "world", rank, worldRanks: Array.from({ length: size }, (_, other) => other) };
}

/** What the ranks of a group know of each other. */
export abstract class ControlPlane {
  /** The group's name, for messages. */
  readonly name: string;
  /** This rank's place in the group. */
  readonly rank: number;
  /** Ranks in the group. */
  readonly size: number;
  /** Rank in the first group, of each rank of this one: what messages name. */
  readonly worldRanks: readonly number[];
  /** Seconds after which a wait for a live rank fails. */
  timeoutSeconds: number;
  /** The call that this rank has announced last. */
  protected call: Call | undefined;

  /** Joins nothing: what derives from this has done so. */
  constructor({ name, rank, worldRanks }: Place, timeoutSeconds: number) {
    this.name = name;
    this.rank = rank;
    this.size = worldRanks.length;
    this.worldRanks = worldRanks;
    this.timeoutSeconds = timeoutSeconds;
  }

  /**
   * Tells the others what this rank calls next, and compares it with what they have called. Never waits, so a
   * difference may be found later, by another rank or in a wait; it is found before a wait times out.
   *
   * @throws {CollectiveError} if the ranks call different things, naming the calls, or if one has stopped all
   */
  abstract announce(call: Call): void;
  /** Gives every rank the host bytes of each, of any and unequal lengths; returns once all have called it. */
  abstract exchange(bytes: Uint8Array): readonly Uint8Array[];
  /**
   * Returns once `ready()` holds. For data planes, whose every wait must end when a rank dies, stops all, or differs.
   *
   * @param ready looked at again whenever the awaited rank calls {@link notify}, and now and then besides
   * @param stage what is waited for, e.g. `contributing`
   * @param awaited who makes it true, as a part of the present call: one rank, or any of some; default: any
   * @throws {CollectiveError} if a rank died, left, is late beyond the timeout, or calls something else
   */
  abstract wait(ready: () => boolean, stage: string, awaited?: number | readonly number[]): void;
  /**
   * Returns once `ready()` holds, which enqueued work makes true. Like {@link wait}, but a rank that has left is not missed if it
   * made all calls of this one before: what it had to enqueue for them is there.
   */
  abstract watch(ready: () => boolean, stage: string): void;
  /** Whether a rank has stopped all ranks. */
  abstract get stopped(): boolean;
  /** Wakes the ranks that wait for this one. */
  abstract notify(): void;
  /** Gives a line to the reader of this rank's reports. */
  abstract report(text: string): void;
  /** A group of some of the ranks. Collective over all of this one; `ranks` is this rank's own list, ascending. */
  abstract split(ranks: readonly number[], name: string): ControlPlane;
  /** The last calls of every rank of the group. */
  abstract flightRecord(): FlightRecord;
  /** Makes every rank's present and future waits fail with `reason`; the first reason is kept. Never blocks. */
  abstract abort(reason: string): void;
  /** Leaves the group: a rank that still waits for this one fails and says so. Never blocks. */
  abstract dispose(): void;

  /** An error about the present call. */
  failure(detail: string, stoppedBy?: number): CollectiveError {
    const [op, sequence] = this.call === undefined ? ["no call yet", 0] : [describeCall(this.call), this.call.sequence];
    const facts = { group: this.name, rank: this.worldRank(this.rank), op, sequence };
    return new CollectiveError(stoppedBy === undefined ? facts : { ...facts, stoppedBy }, detail);
  }

  /** Stops all ranks of the world, with an error about the present call. */
  stop(detail: string, stoppedBy?: number): never {
    const error = this.failure(detail, stoppedBy);
    this.abort(error.message);
    throw error;
  }

  /** Rank in the world, of a rank of this group. */
  worldRank(rank: number): number {
    return at(this.worldRanks, rank, "world rank of rank");
  }

  /** This rank's place in a group of `ranks`, ranks of this one. */
  protected placeIn(ranks: readonly number[], name: string): Place {
    return { name, rank: ranks.indexOf(this.rank), worldRanks: ranks.map((rank) => this.worldRank(rank)) };
  }

  /**
   * Checks that ranks which are to be in one group name the same ranks. Collective over the group that is split.
   *
   * @param note something that the members tell each other
   * @returns the members' notes, in their order
   * @throws {CollectiveError} on every rank, if two name different ranks
   */
  protected agreeOnSplit(ranks: readonly number[], note: number = 0): readonly number[] {
    const parts = this.exchange(new TextEncoder().encode(JSON.stringify([note, ...ranks])))
      .map((bytes): readonly number[] => JSON.parse(new TextDecoder().decode(bytes)));
    const listOf = (rank: number): string => at(parts, rank, "part of rank").slice(1).join(", ");
    for (const [rank, [, ...members]] of parts.entries()) {
      const other = members.find((member) => listOf(member) !== listOf(rank));
      if (other === undefined) continue;
      throw this.failure(`rank ${rank} splits into ranks [${listOf(rank)}], but rank ${other} into [${listOf(other)}]`);
    }
    return ranks.map((rank) => at(at(parts, rank, "part of rank"), 0, "note"));
  }
}

/** How a rank waits. */
export interface ControlOptions {
  /** Seconds after which a wait for a live rank fails; default 600. */
  readonly timeoutSeconds?: number | undefined;
  /** Gets a line about what a user should know, e.g. that a live rank is late. */
  readonly report?: ((text: string) => void) | undefined;
  /** Gets the last calls of all ranks when this rank stops them, and why; gives a line to report. */
  readonly onStop?: ((record: FlightRecord, reason: string) => string) | undefined;
  /** Seconds after which a live rank counts as late; default 10. */
  readonly reportSeconds?: number | undefined;
}
