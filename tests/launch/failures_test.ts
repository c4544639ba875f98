/** The rank that is named as the cause. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { shown } from "../../src/words.ts";
import { describeFailures, orderFailures, type RankFailure } from "../../src/launch/failures.ts";

function failure(rank: number, time: number, more: Partial<RankFailure> = {}): RankFailure {
  const detail = "ended with exit code 1";
  return { rank, pid: 100 + rank, exitCode: 1, detail, lastLines: [], record: undefined, time, ...more };
}

function said(rank: number, time: number, message: string, followed?: number): RankFailure {
  return failure(rank, time, { record: { name: "Error", message, frames: [], uncaught: false, time, followed } });
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
    "fullyshard: ranks 0, 2 ended because of it",
    "fullyshard: stopped rank 3",
  ]);
});

test("describeFailures() tells what several ranks say once", () => {
  assert.deepEqual(describeFailures([said(2, 1, "two\nlines"), said(0, 3, "two\nlines"), said(1, 2, "else")], []), [
    "fullyshard: ranks 0, 2 failed: Error: two\nlines",
    "fullyshard: rank 1 (pid 101) failed after it: Error: else",
  ]);
  const late = [said(0, 1, "first"), said(3, 2, "else"), said(1, 3, "else"), said(2, 4, "else")];
  assert.deepEqual(describeFailures(late, [5, 4]), [
    "fullyshard: rank 0 (pid 100) failed first: Error: first",
    "fullyshard: ranks 1, 2, 3 failed after it: Error: else",
    "fullyshard: stopped ranks 4, 5",
  ]);
});

test("describeFailures() shows where an error was thrown once, however the ranks came there", () => {
  const thrown = (rank: number, frames: readonly string[]): RankFailure => {
    const record = { name: "RangeError", message: "out of tea", frames, uncaught: true, time: rank };
    return failure(rank, rank, { record });
  };
  assert.deepEqual(describeFailures([thrown(0, ["    at a.ts:1:2"]), thrown(1, ["    at b.ts:3:4"])], []), [
    "fullyshard: ranks 0, 1 failed: RangeError: out of tea\n    at a.ts:1:2",
  ]);
});

test("describeFailures() tells what a runtime reported, not its report", () => {
  const bun = ["1 | throw new Error(1)", "    ^", "error: out of tea", "    at a.ts:1:2", "", "Bun v1.4.5 (Linux x64)"];
  const named = bun.map((line) => line.replace("error:", "RangeError:"));
  const deno = ["\u001b[1m\u001b[31merror\u001b[0m: Uncaught (in promise) Error: out of tea", "    at a.ts:1:2"];
  const unresolved = ['error: Module not found "file:///a.ts".', "    at b.ts:1:2"];
  const told = [bun, named, deno, unresolved].map((lastLines) => describeFailures([failure(0, 1, { lastLines })], []));
  assert.deepEqual(told.flat(), [
    "fullyshard: rank 0 (pid 100) failed: out of tea",
    "fullyshard: rank 0 (pid 100) failed: RangeError: out of tea",
    "fullyshard: rank 0 (pid 100) failed: Error: out of tea",
    'fullyshard: rank 0 (pid 100) failed: Module not found "file:///a.ts".',
  ]);
  const several = [0, 1, 2].map((rank) => failure(rank, rank, { lastLines: deno }));
  assert.deepEqual(describeFailures(several, []), ["fullyshard: ranks 0, 1, 2 failed: Error: out of tea"]);
  const own = failure(0, 1, { exitCode: 7, detail: "ended with exit code 7", lastLines: ["error: no disk"] });
  assert.match(
    describeFailures([own], []).join(),
    /it ended with exit code 7\. Its last lines on stderr:\n +error: no/,
  );
});

test("describeFailures() puts a rank that ended without a word before those that saw it", () => {
  const killed = failure(1, 1, { exitCode: 137, detail: "was killed by SIGKILL", lastLines: ["a", "b"] });
  const failures = [said(0, 250, "rank 1 died"), killed];
  assert.equal(orderFailures(failures)[0]?.exitCode, 137);
  assert.deepEqual(describeFailures(failures, []), [
    "fullyshard: rank 1 (pid 101) failed first: it was killed by SIGKILL. Its last lines on stderr:\n    a\n    b",
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
    "fullyshard: rank 0 (pid 100) failed: Error: rank 2 has left",
  ]);
});

test("describeFailures() shows no control characters of what ranks have said", () => {
  const evil = "\u001b[2J\u009b1m\rover";
  const quiet = failure(1, 1, { lastLines: [`last ${evil}`] });
  const reported = failure(1, 1, { lastLines: [`error: ${evil}`] });
  const config = said(0, 1, evil);
  for (const one of [[quiet], [reported], [config], [config, { ...config, rank: 1 }]]) {
    const lines = describeFailures(one, []).join("\n");
    assert.ok(lines.includes("over") && shown(lines) === lines, JSON.stringify(lines));
  }
});
