/** Limits on processes and threads. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import process from "node:process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { UnsupportedError } from "../../src/errors.ts";
import { processLimits, requireProcesses } from "../../src/launch/process_limit.ts";
import { scriptPath } from "./launcher.ts";

test("requireProcesses() refuses ranks that a limit leaves no threads, by its name", () => {
  const limit = (most: number, used: number) => [{ name: "pids.max", most, used }];
  requireProcesses(2, []);
  requireProcesses(2, limit(32, 20));
  assert.throws(() => requireProcesses(2, limit(31, 20)), (error) => {
    assert.ok(error instanceof UnsupportedError);
    assert.match(
      error.message,
      /^Cannot start 2 ranks: pids.max allows 31 processes and threads, 20 are in use, and the ranks need 12 more at least\. /,
    );
    return true;
  });
});

test("processLimits() reads whole numbers", () => {
  for (const { most, used } of processLimits()) assert.ok(most > 0 && used > 0 && used <= most, `${used} of ${most}`);
});

const isRoot = process.getuid?.() === 0;
const canBeOther = isRoot && spawnSync("setpriv", ["--version"]).status === 0;

test("run() refuses ranks beyond 'ulimit -u' instead of leaving them asleep", (context) => {
  if (!canBeOther) return context.skip("needs root and setpriv");
  const main = fileURLToPath(new URL("../../src/cli/main.ts", import.meta.url));
  const isDeno = process.versions["deno"] !== undefined;
  const command = [
    process.execPath,
    ...isDeno ? ["run", "-A", "--no-check"] : [],
    main,
    "run",
    "--nproc-per-node",
    "64",
  ];
  const user = ["--reuid=54321", "--regid=54321", "--clear-groups"];
  const { status, stderr } = spawnSync("setpriv", [
    ...user,
    "bash",
    "-c",
    'ulimit -u 60; exec "$0" "$@"',
    ...command,
    scriptPath("report.ts"),
  ], {
    encoding: "utf8",
    timeout: 60_000,
    env: { ...process.env, HOME: "/nonexistent", DENO_DIR: "/tmp/fullyshard-deno-other", NO_COLOR: "1" },
  });
  assert.equal(status, 2, stderr);
  assert.match(stderr, /^fullyshard run: Cannot start 64 ranks: 'ulimit -u' of this user allows 60 processes/m);
});
