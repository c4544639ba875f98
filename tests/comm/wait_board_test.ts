/** Ranks that wait for each other, in one group or in several: they are named long before the timeout; slow ranks are not. @module */
import assert from "node:assert/strict";
import { test as plainTest } from "node:test";
import { WAIT_ENTRY_BYTES, WaitBoard } from "../../src/comm/control/wait_board.ts";
import { onlyInAll, sharedTest as test } from "../support/share.ts";
import { errorsOf, valuesOf, world } from "../support/world.ts";
import { diverge, type Divergence, reduceLate, sendOther } from "./wait_board_ranks.ts";

/** The boards of some ranks, all in this thread. */
function boardsOf(size: number): readonly WaitBoard[] {
  const bytes = new Uint8Array(size * WAIT_ENTRY_BYTES);
  return Array.from({ length: size }, (_, rank) => new WaitBoard(bytes, rank));
}

plainTest("WaitBoard finds ranks that wait for each other once each has looked again", () => {
  const [zero = assert.fail(), one = assert.fail(), two = assert.fail()] = boardsOf(3);
  zero.begin([1], "a");
  one.begin([2], "b");
  assert.equal(zero.look(), undefined, "rank 2 does not wait");
  two.begin([1], "c");
  for (const board of [zero, one, two, zero]) assert.equal(board.look(), undefined);
  assert.equal(one.look(), undefined, "rank 2 has not looked twice");
  two.look();
  assert.match(one.look() ?? "", /^rank 1 waits in b for rank 2; rank 2 waits in c for rank 1$/);
  assert.equal(zero.look(), "rank 0 waits in a for rank 1; rank 1 waits in b for rank 2; rank 2 waits in c for rank 1");
});

plainTest("WaitBoard begins anew when one of the ranks has waited for something else", () => {
  const [zero = assert.fail(), one = assert.fail(), two = assert.fail()] = boardsOf(3);
  zero.begin([1], "a");
  one.begin([0, 2], "b");
  two.begin([1], "c");
  for (let i = 0; i < 3; i++) for (const board of [one, two]) board.look();
  assert.equal(zero.look(), undefined);
  two.look();
  two.end();
  two.begin([1], "d");
  for (let i = 0; i < 3; i++) for (const board of [one, two]) board.look();
  assert.equal(zero.look(), undefined, "rank 2 has waited for something else");
  zero.end();
  for (let i = 0; i < 5; i++) for (const board of [one, two]) assert.equal(board.look(), undefined);
  zero.begin(Array.from({ length: 9 }, (_, rank) => rank), "too many to name");
  assert.equal(zero.look(), undefined);
});

const CASES: readonly (readonly [what: Divergence, says: RegExp])[] = [
  [
    "another group",
    /rank 3 waits in barrier 'a call of my own' \(group 'world', call \d+\) for rank 0/,
  ],
  [
    "no message",
    /rank 2 waits in send and receive 'activations' .*\(group 'tensor' of ranks 2, 3, .*\) for rank 3; rank 3 waits in barrier/,
  ],
  ["groups in another order", /rank 3 waits in exchange 'shards' .*\(group 'shard' of ranks 1, 3, .*\) for rank 1/],
];

for (const over of ["loopback", ...onlyInAll(["shm"] as const)] as const) {
  for (const [what, says] of CASES) {
    test(`ranks of ${over} that wait for each other are named: ${what}`, async () => {
      for (const error of errorsOf(await world(4, diverge, { over, data: what }))) {
        assert.match(error, /^CollectiveError: .*ranks wait for each other, and none can go on: /);
        assert.match(error, says);
        assert.match(error, /all ranks of a group must make the same collectives in the same order/);
      }
    });
  }
}

test("messages of one length that ranks call otherwise are refused where both ranks name them", async () => {
  for (const error of errorsOf(await world(2, sendOther, { data: ["a: float32 [2, 8]", "a: float32 [8, 2]"] }))) {
    assert.match(
      error,
      /rank 0 sends another message of 4096 bytes than rank 1 receives, which is 'a: float32 \[8, 2\]'/,
    );
  }
  for (const data of [["a", "a"], ["a", undefined], [undefined, "a"]]) {
    assert.deepEqual(valuesOf(await world(2, sendOther, { data })), ["well", "well"]);
  }
});

test("ranks that wait for a slow one, also through others, go on with it", async () => {
  assert.deepEqual(valuesOf(await world(4, reduceLate)), [10, 10, 10, 10]);
});
