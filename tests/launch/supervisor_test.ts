/**
 * Ranks that cannot be started.
 *
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type RankStart, supervise } from "../../src/launch/supervisor.ts";
import { StatusTerminal } from "../../src/runtime/terminal.ts";
import { pidsAfter, untilDead } from "./launcher.ts";

test("supervise() stops the ranks that run when a later one cannot be started", { timeout: 30_000 }, async () => {
  const said: string[] = [];
  const out = {
    isTTY: false,
    columns: 80,
    write: (text: string): boolean => {
      said.push(text);
      return true;
    },
  };
  const shell = (script: string): RankStart => ({
    command: { program: "/bin/sh", args: ["-c", script] },
    variables: {},
    shown: { stdout: true, stderr: true },
    keep: { stdout: undefined, stderr: undefined },
  });
  const waits = "echo pid $$; while :; do sleep 1; done";
  const times = { noticeMs: 200, graceMs: 2000, userGraceMs: 2000 };
  // No program can be given an argument with a null character, so spawn() throws.
  const starts = [shell(waits), shell("exit 0 \0"), shell("echo pid 1")];
  const { exitCode, failures: [failure], stopped } = await supervise(starts, new StatusTerminal(out, out), times);
  assert.equal(exitCode, 127);
  assert.equal(failure?.rank, 1);
  assert.match(failure?.detail ?? "", /^could not be started: .*null bytes/);
  assert.deepEqual(stopped, [0]);
  const pids = pidsAfter("pid", said.join(""));
  assert.equal(pids.length, 1, "rank 2 is not started any more");
  await untilDead(pids);
});
