/**
 * The tree along which the ranks of a group exchange. The ranks of each host form a binary tree under the host's first rank,
 * and the first ranks of the hosts form one. So a rank has at most five neighbours, a path has O(log ranks) edges, and one
 * message along every edge, up and down, makes 2 (ranks - 1) messages.
 *
 * @module
 */
import { at } from "../../at.ts";

/** Neighbours of one rank, as ranks of the group. */
export interface TreePlace {
  /** Undefined for the root, which is rank 0. */
  readonly parent: number | undefined;
  readonly children: readonly number[];
}

/**
 * Neighbours of every rank of a group.
 *
 * @param worldRanks world rank of each rank, ascending
 * @param ranksPerHost ranks of the world on each host; their numbers are consecutive
 */
export function treePlaces(worldRanks: readonly number[], ranksPerHost: number): readonly TreePlace[] {
  const hosts = [...Map.groupBy(worldRanks.keys(), (rank) => Math.floor(at(worldRanks, rank, "rank") / ranksPerHost))];
  const leaders = hosts.map(([, members]) => at(members, 0, "first rank of host"));
  const parents = new Map<number, number>();
  for (const members of [leaders, ...hosts.map(([, ranks]) => ranks)]) {
    for (const [index, rank] of members.entries()) {
      if (index > 0) parents.set(rank, at(members, (index - 1) >> 1, "parent"));
    }
  }
  const children = Map.groupBy(parents.keys(), (child) => parents.get(child));
  return worldRanks.map((_, rank) => ({
    parent: parents.get(rank),
    children: (children.get(rank) ?? []).sort((a, b) => a - b),
  }));
}

/**
 * Neighbours of one rank: what {@link treePlaces} says of it, without the places of all others.
 *
 * @param worldRanks world rank of each rank, ascending
 * @param ranksPerHost ranks of the world on each host; their numbers are consecutive
 */
export function treePlace(worldRanks: readonly number[], ranksPerHost: number, rank: number): TreePlace {
  const leaders: number[] = [];
  const members: number[] = [];
  const own = Math.floor(at(worldRanks, rank, "rank") / ranksPerHost);
  let last: number | undefined;
  for (const [other, worldRank] of worldRanks.entries()) {
    const host = Math.floor(worldRank / ranksPerHost);
    if (host !== last) leaders.push(other);
    if (host === own) members.push(other);
    last = host;
  }
  const among = (list: readonly number[]): readonly [parent: number | undefined, children: readonly number[]] => {
    const index = list.indexOf(rank);
    if (index < 0) return [undefined, []];
    const parent = index === 0 ? undefined : at(list, (index - 1) >> 1, "parent");
    return [parent, list.slice(2 * index + 1, 2 * index + 3)];
  };
  const [[between, leaderChildren], [within, memberChildren]] = [among(leaders), among(members)];
  return { parent: between ?? within, children: [...leaderChildren, ...memberChildren].sort((a, b) => a - b) };
}
