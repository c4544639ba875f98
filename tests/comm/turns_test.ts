/** The turns in which ranks of a host receive and sum for the ranks of others. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { forRank, hostsOf, turnsOf } from "../../src/comm/data/mpi/turns.ts";

/** Ranks on each host. */
const PLACEMENTS = [[2, 2], [1, 3], [3, 1], [4], [1, 1, 1], [2, 3, 1, 4], [8, 8]];

test("turnsOf() has each rank once on each host, in ascending order for each rank of the host, as forRank() says", () => {
  for (const counts of PLACEMENTS) {
    const worldHosts = counts.flatMap((count, host) => Array.from({ length: count }, () => host));
    const order = hostsOf([...worldHosts.keys()], worldHosts);
    for (const [host, own] of order.hosts.entries()) {
      const turns = turnsOf(order, host);
      const what = `${counts.join("+")}, host ${host}`;
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
