/** The division of a batch among the ranks that are left. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { divisionsOf } from "../../src/train/elastic.ts";

type Divided = Parameters<typeof divisionsOf>[0];

const usual: Divided = {
  ...{ globalBatch: 12, microBatches: 1, strategy: "fsdp", mesh: "shard" },
  ...{ enableSequenceParallel: false, cpSize: 1, cpCommStrategy: "allgather", epSize: 1, checkReplicas: 0 },
  ...{ ppSize: 1, ppSchedule: "1f1b", ppSplit: "layers", ppLayers: [] },
};

/** Numbers of ranks with the micro-batches of each. */
function divisions(more: Partial<Divided>, fewestRanks = 1, mostRanks = 6): string {
  const found = divisionsOf({ ...usual, ...more }, { fewestRanks, mostRanks });
  return found.map(({ worldSize, microBatches }) => `${worldSize}x${microBatches}`).join(" ");
}

test("divisionsOf() keeps the batch, and no micro-batch is larger than on the most ranks", () => {
  // Six ranks take 2 samples; five cannot divide 12; four take 3 in parts of one, as 2 do not divide 3.
  assert.equal(divisions({}), "1x6 2x3 3x2 4x3 6x1");
  assert.equal(divisions({ microBatches: 2 }), "1x12 2x6 3x4 4x3 6x2");
  assert.equal(divisions({}, 4), "4x3 6x1");
});

test("divisionsOf() takes only numbers of ranks that axes and meshes fit", () => {
  // Ranks of a tensor axis read the same samples.
  assert.equal(divisions({ tpSize: 2 }), "2x3 4x2 6x1");
  assert.equal(divisions({ mesh: "2x3" }), "6x1");
  assert.equal(divisions({ cpSize: 3 }), "3x2 6x1");
  // Ranks of a pipeline read the same samples.
  assert.equal(divisions({ ppSize: 2, microBatches: 2 }), "2x6 4x3 6x2");
  assert.equal(divisions({ ppSize: 2, microBatches: 2, ppSchedule: "interleaved" }), "2x6 4x3 6x2");
  assert.throws(() => divisions({ tpSize: 4 }), /tpSize/);
});
