/** The turns in which ranks of a host receive and sum for the ranks of others. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { forRank, hostsOf, turnsOf } from "../../src/comm/data/mpi/turns.ts";

/** Ranks on each host, and hosts of ranks in other orders. */
const COUNTS = [[2, 2], [1, 3], [3, 1], [4], [1, 1, 1], [2, 3, 1, 4], [8, 8]];
const PLACEMENTS = [
  ...COUNTS.map((counts) => counts.flatMap((count, host) => Array.from({ length: count }, () => host))),
  ...[[0, 1, 0, 1], [0, 0, 1, 0, 1, 1, 1]],
];

test("turnsOf() has each rank once on each host, in ascending order for each rank of the host, as forRank() says", () => {
  for (const worldHosts of PLACEMENTS) {
    const order = hostsOf([...worldHosts.keys()], worldHosts);
    for (const [host, own] of order.hosts.entries()) {
      const turns = turnsOf(order, host);
      const what = `${worldHosts.join()}, host ${host}`;
      assert.deepEqual(turns.flat().toSorted((a, b) => a - b), [...worldHosts.keys()], what);
      for (const [local, rank] of own.entries()) {
        const mine = turns.flatMap((turn) => turn[local] ?? []);
        assert.deepEqual(mine, mine.toSorted((a, b) => a - b), what);
        assert.ok(mine.every((other) => forRank(order, host, other) === rank), what);
        assert.ok(mine.includes(rank), what);
      }
    }
  }
});

test("hostsOf() numbers the ranks of a group that has some of each host", () => {
  const order = hostsOf([1, 2, 3, 5], [0, 0, 0, 1, 1, 2]);
  assert.deepEqual(order, { hosts: [[0, 1], [2], [3]], hostOf: [0, 0, 1, 2] });
});

test("hostsOf() takes each run of a host's ranks that follow each other for a host, as sums go in the order of ranks", () => {
  const worldHosts = [0, 1, 0, 1, 1];
  assert.deepEqual(hostsOf([0, 1, 2, 3, 4], worldHosts).hosts, [[0], [1], [2], [3, 4]]);
  assert.deepEqual(hostsOf([0, 2, 3, 4], worldHosts).hosts, [[0, 1], [2, 3]]);
});
