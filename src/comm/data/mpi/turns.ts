/**
 * The division of work among the ranks of a host for the ranks of others: which rank of a host receives, or sums, for which rank.
 *
 * @module
 */
import { at } from "../../../at.ts";

/**
 * The ranks of a group by host, in ascending order. Sums go from host to host in the order of ranks, so where the ranks of a host do
 * not follow each other, each run of them that does counts as a host.
 */
export interface HostOrder {
  /** The ranks of each host. */
  readonly hosts: readonly (readonly number[])[];
  /** The host of each rank. */
  readonly hostOf: readonly number[];
}

/** The hosts of a group. @param worldHosts the host of each rank of the world */
export function hostsOf(worldRanks: readonly number[], worldHosts: readonly number[]): HostOrder {
  const hosts: number[][] = [];
  let before: number | undefined;
  for (const [rank, worldRank] of worldRanks.entries()) {
    const host = at(worldHosts, worldRank, "host of rank");
    if (host === before) hosts.at(-1)?.push(rank);
    else hosts.push([rank]);
    before = host;
  }
  return { hosts, hostOf: hosts.flatMap((ranks, host) => ranks.map(() => host)) };
}

/**
 * The turns of a host, in which each of its ranks is for at most one rank of the group. All ranks have a turn on each host, and each rank
 * of a host takes them in ascending order, so messages between two hosts keep one order.
 *
 * @returns for each turn the rank that each rank of the host is for
 */
export function turnsOf({ hosts, hostOf }: HostOrder, host: number): readonly (readonly number[])[] {
  const own = at(hosts, host, "ranks of host");
  const [first = 0] = own;
  const others = [...hostOf.keys()].filter((rank) => hostOf[rank] !== host);
  const inTurns = (ranks: readonly number[]): number[][] =>
    Array.from(
      { length: Math.ceil(ranks.length / own.length) },
      (_, turn) => ranks.slice(turn * own.length).slice(0, own.length),
    );
  return [
    ...inTurns(others.filter((rank) => rank < first)),
    own,
    ...inTurns(others.filter((rank) => rank > first)),
  ];
}

/** The rank of a host that is for another rank. */
export function forRank(order: HostOrder, host: number, rank: number): number {
  const own = at(order.hosts, host, "ranks of host");
  if (order.hostOf[rank] === host) return rank;
  const [first = 0] = own;
  const place = rank < first ? rank : rank - first - own.length;
  return at(own, place % own.length, "rank of host");
}
