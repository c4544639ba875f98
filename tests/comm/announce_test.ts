/**
 * Calls announced and compared: two ranks in one thread, which works because announcing never waits.
 *
 * @module
 */
import { test } from "node:test";
import assert from "node:assert/strict";
import type { Call } from "../../src/comm/call.ts";
import { createWorkersWorld, joinWorkers, type WorkersControlPlane } from "../../src/comm/control/workers.ts";
import { float32 } from "../../src/dtype.ts";

/** The ranks of a world, all in this thread. */
function ranksOf(size: number): WorkersControlPlane[] {
  const world = createWorkersWorld(size, 0);
  return Array.from({ length: size }, (_, rank) => joinWorkers(world, rank, {}));
}

function call(sequence: number, unit: string, more: Partial<Call> = {}): Call {
  const base = { kind: "gather", phase: "forward", dtype: undefined, count: 64, detail: 0, step: 3 } as const;
  return { ...base, sequence, unit, ...more };
}

/** Announces calls `from` to `to`, of units 'layers.0' to 'layers.9' in turn. */
function announce(rank: WorkersControlPlane, from: number, to: number, unitOf = (i: number): number => i % 10): void {
  for (let i = from; i <= to; i++) rank.announce(call(i, `layers.${unitOf(i)}`));
}

test("announce() finds the first call that differs, whichever rank makes it second, and names both", () => {
  const differences: readonly (readonly [Partial<Call>, RegExp])[] = [
    [{ unit: "layers.8" }, /rank 0 calls gather 'layers\.7' \(forward, 64 bytes\); rank 1 calls gather 'layers\.8'/],
    [{ kind: "write" }, /rank 1 calls write 'layers\.7' \(forward, 64 bytes\)/],
    [{ phase: "backward" }, /rank 1 calls gather 'layers\.7' \(backward, 64 bytes\)/],
    [{ phase: undefined }, /rank 1 calls gather 'layers\.7' \(64 bytes\)/],
    [{ dtype: float32 }, /rank 1 calls gather 'layers\.7' \(forward, float32, 64 elements, 256 bytes\)/],
    [{ count: 64 + 2 ** 32 }, /rank 1 calls gather 'layers\.7' \(forward, 4294967360 bytes\)/],
    [{ detail: 1 }, /make the same call with different slices, root, operation or factor: rank 0, 1 calls gather/],
    [{ unit: `${"a".repeat(100)}b` }, /rank 1 calls gather 'a{92}…'/],
  ];
  for (const [difference, pattern] of differences) {
    const [zero, one] = ranksOf(2);
    assert.ok(zero !== undefined && one !== undefined);
    announce(zero, 1, 6);
    announce(one, 1, 6);
    zero.announce(call(7, "layers.7"));
    assert.throws(() => one.announce(call(7, "layers.7", difference)), (error: Error) => {
      assert.match(error.message, pattern);
      assert.match(error.message, /\(group 'world', call 7\): ranks make/);
      return true;
    });
    assert.throws(
      () => announce(zero, 8, 8),
      /Rank 0 in gather 'layers\.8' \(.*call 8\): rank 1 stopped all ranks: Rank 1 in .*ranks make/,
    );
  }
});

test("announce() lets ranks differ in what is not compared", () => {
  const [zero, one] = ranksOf(2);
  zero?.announce(call(1, "loss", { step: 1 }));
  one?.announce(call(1, "loss", { step: 2 }));
});

test("announce() finds long names that differ behind what is kept of them", () => {
  const [zero, one] = ranksOf(2);
  zero?.announce(call(1, `${"a".repeat(200)}0`));
  assert.throws(() => one?.announce(call(1, `${"a".repeat(200)}1`)), /same call with different/);
});

test("announce() never waits: a rank runs ahead by far more calls than are kept, and nothing is found wrong", () => {
  const [zero, one, two] = ranksOf(3);
  assert.ok(zero !== undefined && one !== undefined && two !== undefined);
  announce(zero, 1, 1000);
  announce(one, 1, 950);
  announce(two, 1, 1000);
  announce(one, 951, 1000);
  announce(zero, 1001, 1001);
});

test("announce() finds a difference late, and says what is known of where it was", () => {
  const swapped = (i: number): number => i === 7 ? 8 : i === 8 ? 7 : i % 10;
  // Rank 0 is so far ahead that the calls which differ are gone when rank 1 makes them.
  const [zero, one] = ranksOf(2);
  assert.ok(zero !== undefined && one !== undefined);
  announce(zero, 1, 100);
  announce(one, 1, 36, swapped);
  assert.throws(
    () => announce(one, 37, 37),
    /ranks made different calls at or before call 37, the oldest that they still keep: rank 0, 1 calls gather 'layers.7'/,
  );
  // The same with the calls still there: a rank that was not compared meanwhile finds the first that differs.
  const [ahead, behind] = ranksOf(2);
  assert.ok(ahead !== undefined && behind !== undefined);
  announce(behind, 1, 6);
  announce(ahead, 1, 60, swapped);
  assert.throws(
    () => announce(behind, 7, 7),
    /ranks make different calls: rank 0 calls gather 'layers\.8' .*; rank 1 calls gather 'layers\.7'/,
  );
});

test("announce() keeps apart what only two ranks do", () => {
  const [zero, one] = ranksOf(2);
  assert.ok(zero !== undefined && one !== undefined);
  announce(zero, 1, 1);
  zero.announce(call(1, "keys", { kind: "send and receive" }));
  announce(zero, 2, 2);
  announce(one, 1, 3);
  announce(zero, 3, 3);
});

test("split() into cells frees them when all members have left, and says when there are too many", () => {
  const [alone] = ranksOf(1);
  assert.ok(alone !== undefined);
  for (let turn = 0; turn < 40; turn++) {
    const child = alone.split([0], `turn ${turn}`);
    assert.deepEqual(child.exchange(Uint8Array.of(turn)), [Uint8Array.of(turn)]);
    child.dispose();
  }
  const children = Array.from({ length: 15 }, (_, i) => alone.split([0], `child ${i}`));
  assert.throws(() => alone.split([0], "one more"), /no room for group 'one more': ranks may be in 16 groups at once/);
  children[3]?.dispose();
  assert.equal(alone.split([0], "in its place").name, "in its place");
});
