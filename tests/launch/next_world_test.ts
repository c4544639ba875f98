/** The next ranks of a run after a failure. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { RankFailure } from "../../src/launch/failures.ts";
import { nextWorld, ranksToGoOnWith, type WorldLimits, type WorldState } from "../../src/launch/next_world.ts";
import type { ElasticWords, LaunchOutcome } from "../../src/launch/supervisor.ts";

const limits: WorldLimits = { fewestRanks: 2, mostRanks: 4, maxRestarts: 2 };
const state: WorldState = { numRanks: 4, restarts: 0, lastError: undefined };
const words: ElasticWords = { worldSizes: [2, 3, 4], out: undefined, hasBegun: true, regroups: false };

/** A rank's failure with an error, or without a word. */
function failure(rank: number, name?: string, message = "out of tea"): RankFailure {
  const record = name === undefined ? undefined : { name, message, frames: [], uncaught: false, time: 5 };
  return { rank, pid: rank + 1, exitCode: 1, detail: "was killed by SIGKILL", lastLines: [], record, time: 5 };
}

function outcome(failures: readonly RankFailure[], more: Partial<LaunchOutcome> = {}): LaunchOutcome {
  return { exitCode: failures.length === 0 ? 0 : 1, failures, stopped: [], words, ...more };
}

test("nextWorld() goes on with the ranks that did not fail of themselves", () => {
  const followers = [failure(0, "CollectiveError"), failure(3, "CollectiveError")];
  const one = nextWorld(state, limits, outcome([failure(1), ...followers]));
  assert.deepEqual(one, {
    kind: "start",
    state: { numRanks: 3, restarts: 1, lastError: undefined },
    why: "going on with 3 of 4 ranks (restart 1 of 2)",
    cause: "as rank 1 is lost",
  });
  const two = nextWorld(state, limits, outcome([failure(1), failure(2), ...followers]));
  assert.equal(two.kind === "start" && two.state.numRanks, 2);
  // Three lost ranks leave one, which is less than asked for.
  const three = nextWorld(state, limits, outcome([failure(1), failure(2), failure(3)]));
  assert.deepEqual(three.kind === "start" && [three.state.numRanks, three.why], [
    4,
    "going on with 4 ranks (restart 1 of 2)",
  ]);
  // With one number instead of a range, all are started again.
  const all = nextWorld(state, { ...limits, fewestRanks: 4 }, outcome([failure(1)]));
  assert.equal(all.kind === "start" && all.state.numRanks, 4);
});

test("nextWorld() ends with the run, by a signal, by a wrong setting, by an error that comes again, and without restarts", () => {
  assert.deepEqual(nextWorld(state, limits, outcome([])), { kind: "end", why: undefined });
  assert.equal(nextWorld(state, limits, outcome([failure(1)], { signal: "SIGTERM" })).kind, "end");
  assert.equal(nextWorld(state, limits, outcome([failure(1, "ConfigError")])).kind, "end");
  const thrown = nextWorld(state, limits, outcome([failure(1, "Error")]));
  assert.equal(thrown.kind, "start");
  const again = thrown.kind === "start" ? thrown.state : state;
  assert.match(nextWorld(again, limits, outcome([failure(2, "Error")])).why ?? "", /the same error came twice/);
  assert.equal(nextWorld(again, limits, outcome([failure(2, "Error", "out of coffee")])).kind, "start");
  const used = nextWorld({ ...state, restarts: 2 }, limits, outcome([failure(1)]));
  assert.deepEqual(used, { kind: "end", why: "not restarted: --max-restarts 2 is used up" });
});

test("nextWorld() lets ranks in without a restart", () => {
  const left = outcome([], { words: { ...words, regroups: true } });
  assert.deepEqual(nextWorld({ ...state, numRanks: 2, restarts: 2 }, limits, left), {
    kind: "start",
    state: { numRanks: 4, restarts: 2, lastError: undefined },
    why: "going on with 4 ranks, as ranks come in",
    cause: "as ranks come in",
  });
});

test("ranksToGoOnWith() takes the most ranks that the batch can be divided among", () => {
  assert.equal(ranksToGoOnWith(3, limits, [2, 4]), 2);
  assert.equal(ranksToGoOnWith(3, limits, undefined), 3);
  assert.equal(ranksToGoOnWith(3, limits, [4]), 4);
  assert.equal(ranksToGoOnWith(1, limits, [1, 2, 4]), 4);
});
