/** Workers for which a process does not wait. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { runInBackground } from "../../src/runtime/background_worker.ts";

test("what awaits a Worker that it holds goes on when the Worker has ended", async () => {
  const run = runInBackground(new URL("./scripts/slow_worker.ts", import.meta.url), undefined);
  run.hold(); // else a test of Deno, with nothing else to do, fails here
  await run.ended;
});

test("a Worker that fails is an error for what awaits it", async () => {
  const run = runInBackground(new URL("./scripts/no_such_worker.ts", import.meta.url), undefined);
  run.hold();
  await assert.rejects(run.ended);
});
