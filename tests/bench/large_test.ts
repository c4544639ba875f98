/** The output that `npm run bench -- large` reads, and its report. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { factsOf, readLargeRun } from "../../bench/large.ts";

const run = {
  predictedPeak: 2 ** 30,
  seenPeak: 2 ** 30,
  predictedMemory: 3 * 2 ** 29,
  seenMemory: 5 * 2 ** 28,
  limit: 2 ** 31,
  resident: 2 ** 32,
  parameters: 7_901_440,
  secondsPerStep: [2, 1.25, 1],
  losses: [8.5, 8.25, 8],
};

test("readLargeRun() finds the case's line behind what a launcher writes", () => {
  assert.deepEqual(readLargeRun(`[rank0]: llama-8m-w2 ${JSON.stringify(run)}\n`, "llama-8m-w2"), run);
  assert.throws(() => readLargeRun("", "llama-8m-w2"), /nothing was printed of llama-8m-w2/);
});

test("factsOf() tells bytes in GiB, each beside what was predicted", () => {
  assert.deepEqual(factsOf(run), {
    predictedPeak: 1,
    seenPeak: 1,
    predictedMemory: 1.5,
    seenMemory: 1.25,
    limit: 2,
    resident: 4,
    millionParameters: 7.90144,
    secondsPerStep: "2.00 1.25 1.00",
    losses: "8.5000 8.2500 8.0000",
  });
});
