/**
 * The global order: every sample once an epoch, the same whatever the number of ranks.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { microBatchSize, Sampler } from "../../src/data/sampler.ts";
import { ArgumentError } from "../../src/errors.ts";

/** Samples of a step in the order in which their gradients are added: micro-batch by micro-batch, rank by rank. */
function stepOf(
  sampler: Sampler,
  cursor: number,
  globalBatch: number,
  worldSize: number,
  microBatches: number,
): number[] {
  const ranks = Array.from(
    { length: worldSize },
    (_, rank) => sampler.batchFor(cursor, { globalBatch, rank, worldSize, microBatches }),
  );
  return Array.from({ length: microBatches }, (_, m) => ranks.flatMap((batches) => batches[m]?.samples ?? [])).flat();
}

test("Sampler.at() takes every sample once an epoch, in another order each time", () => {
  const sampler = new Sampler(37, 5);
  const orders = [0, 1, 2].map((epoch) =>
    Array.from({ length: 37 }, (_, i) => {
      const place = sampler.at(epoch * 37 + i);
      assert.equal(place.epoch, epoch);
      return place.sample;
    })
  );
  for (const order of orders) {
    assert.deepEqual([...order].sort((a, b) => a - b), Array.from({ length: 37 }, (_, i) => i));
  }
  assert.equal(new Set(orders.map(String)).size, 3);
  assert.notDeepEqual(orders[0], Array.from({ length: 37 }, (_, i) => i));
});

test("Sampler.at() depends on the seed, and on nothing asked before", () => {
  const first = new Sampler(100, 1);
  const again = new Sampler(100, 1);
  const other = new Sampler(100, 2);
  const forward = Array.from({ length: 250 }, (_, i) => first.at(i).sample);
  const backward = Array.from({ length: 250 }, (_, i) => again.at(249 - i).sample).reverse();
  assert.deepEqual(forward, backward);
  assert.notDeepEqual(forward, Array.from({ length: 250 }, (_, i) => other.at(i).sample));
});

test("Sampler.at() keeps its values, whatever the version", () => {
  const sampler = new Sampler(1000, 0);
  assert.deepEqual([0, 1, 2, 999, 1000, 123_456_789].map((index) => sampler.at(index).sample), PLACES);
});

test("Sampler.batchFor() takes the same samples in the same order on any number of ranks", () => {
  const sampler = new Sampler(50, 3);
  const globalBatch = 12;
  // From before the end of an epoch to after it.
  for (const cursor of [0, 12, 36, 48, 480]) {
    const expected = Array.from({ length: globalBatch }, (_, i) => sampler.at(cursor + i).sample);
    for (
      const [worldSize, microBatches] of [[1, 1], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1], [4, 3], [12, 1], [
        1,
        12,
      ]] as const
    ) {
      assert.deepEqual(stepOf(sampler, cursor, globalBatch, worldSize, microBatches), expected);
    }
  }
});

test("Sampler.batchFor() gives one rank's micro-batches in rank order of many ranks", () => {
  const sampler = new Sampler(50, 3);
  const alone = sampler.batchFor(24, { globalBatch: 12, rank: 0, worldSize: 1, microBatches: 6 });
  for (let rank = 0; rank < 3; rank++) {
    const mine = sampler.batchFor(24, { globalBatch: 12, rank, worldSize: 3, microBatches: 2 });
    assert.deepEqual(mine, [alone[rank], alone[3 + rank]]);
    // Places in the global order: two samples each.
    assert.deepEqual(mine.map(({ start }) => start), [24 + 2 * rank, 24 + 2 * (3 + rank)]);
  }
});

test("microBatchSize() refuses splits that do not divide", () => {
  const split = { globalBatch: 12, rank: 1, worldSize: 2, microBatches: 3 };
  assert.equal(microBatchSize(split), 2);
  assert.throws(
    () => microBatchSize({ ...split, globalBatch: 13 }),
    (error) => error instanceof ArgumentError && /2 × 3 = 6, got 13: use 18/.test(error.message),
  );
  assert.throws(() => microBatchSize({ ...split, rank: 2 }), /rank must be below worldSize 2, got 2/);
  assert.throws(() => microBatchSize({ ...split, rank: -1 }), ArgumentError);
  assert.throws(() => microBatchSize({ ...split, microBatches: 0 }), ArgumentError);
  assert.throws(() => microBatchSize({ ...split, worldSize: 1.5 }), ArgumentError);
  assert.throws(() => new Sampler(0, 0), ArgumentError);
  assert.throws(() => new Sampler(4, -1), ArgumentError);
  assert.throws(() => new Sampler(4, 0).at(-1), ArgumentError);
});

// From an independent implementation of keyOf() and Permutation in Python.
const PLACES: readonly number[] = [283, 605, 890, 682, 912, 528];
