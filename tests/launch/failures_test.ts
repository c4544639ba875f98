/** Which rank is named as the cause. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { describeFailures, orderFailures, type RankFailure } from "../../src/launch/failures.ts";

function failure(rank: number, time: number, more: Partial<RankFailure> = {}): RankFailure {
  const detail = "ended with exit code 1";
  return { rank, pid: 100 + rank, exitCode: 1, detail, lastLines: [], record: undefined, time, ...more };
}

function said(rank: number, time: number, message: string, followed?: number): RankFailure {
  return failure(rank, time, { record: { rank, name: "Error", message, time, followed } });
}

test("describeFailures() names the first that failed of itself, however late it ended", () => {
  const failures = [
    said(0, 20, "rank 1 stopped all ranks", 1),
    said(2, 5, "rank 1 failed", 1),
    said(1, 10, "no coffee"),
  ];
  assert.deepEqual(orderFailures(failures).map(({ rank }) => rank), [1, 2, 0]);
  assert.deepEqual(describeFailures(failures, [3]), [
    "fullyshard: rank 1 (pid 101) failed first: Error: no coffee",
    "fullyshard: rank 0, 2 ended because of it",
    "fullyshard: stopped rank 3",
  ]);
});

test("describeFailures() tells what several ranks say once", () => {
  assert.deepEqual(describeFailures([said(2, 1, "two\nlines"), said(0, 3, "two\nlines"), said(1, 2, "else")], []), [
    "fullyshard: rank 0, 2 failed: Error: two",
    "lines",
    "fullyshard: rank 1 (pid 101) failed after it: Error: else",
  ]);
});

test("describeFailures() puts a rank that ended without a word before those that saw it", () => {
  const killed = failure(1, 1, { exitCode: 137, detail: "was killed by SIGKILL", lastLines: ["a", "b"] });
  const failures = [said(0, 250, "rank 1 died"), killed];
  assert.equal(orderFailures(failures)[0]?.exitCode, 137);
  assert.deepEqual(describeFailures(failures, []), [
    "fullyshard: rank 1 (pid 101) failed first: it was killed by SIGKILL. Its last lines on stderr:",
    "    a",
    "    b",
    "fullyshard: rank 0 (pid 100) failed after it: Error: rank 1 died",
  ]);
});

test("describeFailures() says nothing of a run that went well", () => {
  assert.deepEqual(describeFailures([], []), []);
});

test("orderFailures() has a cause even if every rank says that it followed another", () => {
  assert.equal(orderFailures([said(1, 2, "b", 0), said(0, 1, "a", 1)])[0]?.rank, 0);
});

test("describeFailures() names a rank that ended in peace while others needed it", () => {
  assert.deepEqual(describeFailures([said(0, 5, "rank 2 has left", 2)], []), [
    "fullyshard: rank 2 ended, without an error of its own, while others awaited it",
    "fullyshard: rank 0 (pid 100) failed first: Error: rank 2 has left",
  ]);
});
