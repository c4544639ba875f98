/**
 * The contract of a control plane: which ranks are in a group, which are alive, what they call, and the exchange of small
 * host bytes. It moves no tensors: a data plane, built on it, does.
 *
 * Everything here is synchronous and needs no event loop: a rank that waits runs no timers and no signal handlers, so {@link
 * ControlPlane.wait} itself is the watchdog.
 *
 * @module
 */
import { at } from "../at.ts";
import { CollectiveError } from "../errors.ts";
import { type Call, describeCall, hashNumbers, hashText } from "./call.ts";
import type { FlightRecord } from "./flight_record.ts";

/**
 * The members of a group.
 *
 * @internal
 */
export interface Place {
  readonly name: string;
  readonly rank: number;
  readonly worldRanks: readonly number[];
}

/** Name of the group of all ranks. */
const WORLD = "world";

/** Most ranks of a group that messages list. */
const MOST_LISTED = 8;

export function placeInWorld(rank: number, size: number): Place {
  return { name: WORLD, rank, worldRanks: Array.from({ length: size }, (_, other) => other) };
}

/** The host's side of a group: liveness, announced calls, exchange of bytes. */
export abstract class ControlPlane {
  /** The group's name, for messages. */
  readonly name: string;
  /** This rank's place in the group. */
  readonly rank: number;
  /** Ranks in the group. */
  readonly size: number;
  /** World rank of each rank of this group: messages name these. */
  readonly worldRanks: readonly number[];
  /** Names of the axes of meshes that have the ranks of this group and were laid after it, for messages. */
  readonly axes: Set<string> = new Set();
  /** Seconds after which a wait for a live rank fails. */
  timeoutSeconds: number;
  /** The call that this rank has announced last. */
  protected call: Call | undefined;

  /** Keeps the place; subclasses join the group. */
  constructor({ name, rank, worldRanks }: Place, timeoutSeconds: number) {
    this.name = name;
    this.rank = rank;
    this.size = worldRanks.length;
    this.worldRanks = worldRanks;
    this.timeoutSeconds = timeoutSeconds;
  }

  /**
   * Announces this rank's next call, and compares it with the calls that other ranks have announced. Never waits, so a
   * difference may be found later: by another rank, or by this one in a wait before it times out.
   *
   * @throws {CollectiveError} if ranks make different calls, naming the calls, or if a rank has stopped all
   */
  abstract announce(call: Call): void;
  /** Gives every rank the host bytes of all ranks, whose lengths may differ. Returns once all ranks have called it. */
  abstract exchange(bytes: Uint8Array): readonly Uint8Array[];
  /**
   * Returns once `ready()` holds. Data planes wait by it alone: so every wait ends when a rank dies, stops all, or makes
   * another call.
   *
   * @param ready is called again after each {@link notify} of the awaited rank, and from time to time
   * @param stage the step that is awaited, in words that follow "waited for", e.g. `its contribution`: the awaited rank's
   * @param awaited one rank, or several if any of them may make `ready()` true, within the present call, and nothing else may; default:
   * all peers, and other events may make it true too
   * @throws {CollectiveError} if a rank died, left, is late beyond the timeout, or calls something else
   */
  abstract wait(ready: () => boolean, stage: string, awaited?: number | readonly number[]): void;
  /**
   * Returns once `ready()` holds, which enqueued work makes true. Like {@link wait}, but a rank that has left after it made
   * this call is no failure: it had enqueued its part of the call before it left.
   */
  abstract watch(ready: () => boolean, stage: string): void;
  /** True once a rank has stopped all ranks. */
  abstract get stopped(): boolean;
  /** Wakes the ranks that wait for this one. */
  abstract notify(): void;
  /** Hands a line to this rank's `report` option. */
  abstract report(text: string): void;
  /** Makes a group of some of the ranks. Collective over all ranks of this group; `ranks` is this rank's own list, ascending. */
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
    const facts = { group: this.name, place: this.place, rank: this.worldRank(this.rank), op, sequence };
    return new CollectiveError(stoppedBy === undefined ? facts : { ...facts, stoppedBy }, detail);
  }

  /** Stops all ranks of the world, and throws an error about the present call. */
  stop(detail: string, stoppedBy?: number): never {
    const error = this.failure(detail, stoppedBy);
    this.abort(error.message);
    throw error;
  }

  /** The group in words: its name, the axes whose ranks it has, and its ranks where they are not all. */
  get place(): string {
    const { name, axes, worldRanks, size } = this;
    const shown = size <= MOST_LISTED ? worldRanks.join(", ") : `${worldRanks.slice(0, 3).join(", ")}, … of ${size}`;
    const others = [...axes].filter((axis) => axis !== name);
    const named = others.map((axis) => `'${axis}'`).join(", ");
    return [
      `group '${name}'${name === WORLD ? "" : ` of ranks ${shown}`}`,
      ...others.length === 0 ? [] : [`${others.length === 1 ? "axis" : "axes"} ${named}`],
    ].join(", ");
  }

  /** World rank of a rank of this group. */
  worldRank(rank: number): number {
    return at(this.worldRanks, rank, "world rank of rank");
  }

  /** This rank's place in a group of `ranks`, which are ranks of this group. */
  protected placeIn(ranks: readonly number[], name: string): Place {
    return { name, rank: ranks.indexOf(this.rank), worldRanks: ranks.map((rank) => this.worldRank(rank)) };
  }

  /**
   * Checks that ranks which split into one group name the same ranks. Collective over the group that is split.
   *
   * @param note a number that each member hands to the others
   * @returns the members' notes, in their order
   * @throws {CollectiveError} on every rank, if two members name different ranks
   */
  protected agreeOnSplit(ranks: readonly number[], note: number = 0): readonly number[] {
    const own = ranks.join();
    // The lists of all ranks may be long: they are exchanged only if their digests show that they do not fit.
    const parts = this.#exchangeJson<readonly [note: number, length: number, digest: string]>(
      [note, ranks.length, `${hashNumbers(ranks)} ${hashText(own)}`],
    );
    const sharing = Map.groupBy(parts.keys(), (rank) => at(parts, rank, "part of rank")[2]);
    if (parts.some(([, length, digest]) => sharing.get(digest)?.length !== length)) this.#throwDifferentSplits(ranks);
    return ranks.map((rank) => at(parts, rank, "part of rank")[0]);
  }

  /** Names two ranks whose lists differ. Collective. */
  #throwDifferentSplits(ranks: readonly number[]): never {
    const parts = this.#exchangeJson<readonly number[]>(ranks);
    const listOf = (rank: number): string => at(parts, rank, "part of rank").join(", ");
    for (const [rank, members] of parts.entries()) {
      const other = members.find((member) => listOf(member) !== listOf(rank));
      if (other === undefined) continue;
      throw this.failure(`rank ${rank} splits into ranks [${listOf(rank)}], but rank ${other} into [${listOf(other)}]`);
    }
    throw this.failure("ranks split into parts that do not fit");
  }

  #exchangeJson<T>(value: T): readonly T[] {
    return this.exchange(new TextEncoder().encode(JSON.stringify(value)))
      .map((bytes): T => JSON.parse(new TextDecoder().decode(bytes)));
  }
}

/** Options of a control plane: timeouts and reports. */
export interface ControlOptions {
  /** Seconds after which a wait for a live rank fails; default 600. */
  readonly timeoutSeconds?: number | undefined;
  /** Receives a line for the user, e.g. that a live rank is late. */
  readonly report?: ((text: string) => void) | undefined;
  /** Receives the last calls of all ranks, and the reason, when this rank stops all; returns a line to report. */
  readonly onStop?: ((record: FlightRecord, reason: string) => string) | undefined;
  /** Seconds after which a live rank counts as late; default 10. */
  readonly reportSeconds?: number | undefined;
}
