/**
 * What every control plane has in common: who is in the group, how a group is split, how a call that failed is told.
 *
 * @module
 */
import { at } from "../../at.ts";
import { CollectiveError } from "../../errors.ts";
import { type Call, describeCall } from "../call.ts";

/** Who is in a group. */
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

/** The members of a group. */
export abstract class Membership {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly worldRanks: readonly number[];
  timeoutSeconds: number;
  /** The call that this rank has announced last. */
  protected call: Call | undefined;

  constructor({ name, rank, worldRanks }: Place, timeoutSeconds: number) {
    this.name = name;
    this.rank = rank;
    this.size = worldRanks.length;
    this.worldRanks = worldRanks;
    this.timeoutSeconds = timeoutSeconds;
  }

  abstract exchange(bytes: Uint8Array): readonly Uint8Array[];

  /** An error about the present call. */
  failure(detail: string, stoppedBy?: number): CollectiveError {
    const [op, sequence] = this.call === undefined ? ["no call yet", 0] : [describeCall(this.call), this.call.sequence];
    const facts = { group: this.name, rank: this.worldRank(this.rank), op, sequence };
    return new CollectiveError(stoppedBy === undefined ? facts : { ...facts, stoppedBy }, detail);
  }

  /** Rank in the world, of a rank of this group. */
  protected worldRank(rank: number): number {
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
