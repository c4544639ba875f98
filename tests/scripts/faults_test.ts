/** `npm run faults`, for one fault of ranks, one of files, and a kill from outside. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { longTest, sharedTest as test } from "../support/share.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));

function faults(...flags: readonly string[]) {
  const args = ["scripts/runtime.mjs", "bun", "scripts/faults/main.ts", ...flags];
  return spawnSync("node", args, { cwd: root, encoding: "utf8" });
}

// The script runs under Bun, whatever this runtime is, and starts runs under both.
for (
  const [run, only, says] of [
    [test, "killed in a save", /rank 1 .* failed first: it was killed by SIGKILL/],
    [longTest, "1 kills", /1 kills under Bun and Deno, each resumed from the newest checkpoint/],
    [longTest, "bit-flipped", /checkpoint-4: shard-.* Bytes 0 to \d+ should have checksum/],
  ] as const
) {
  run(`faults does what it is asked for, and reports it: ${only}`, { timeout: 120_000 }, () => {
    const { status, stdout, stderr } = faults("--json", "--kills", "1", "--only", only);
    assert.equal(status, 0, stdout + stderr);
    const { faults: reports } = JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
    assert.equal(reports.length, 1);
    assert.match(reports[0].named, says);
    assert.deepEqual([reports[0].lost, reports[0].wrong], [[], []]);
    assert.ok(Number.isFinite(reports[0].ended_in_seconds));
  });
}

test("faults refuses flags that it does not know", () => {
  const { status, stderr } = faults("--kills", "none");
  assert.equal(status, 2);
  assert.match(stderr, /Usage: npm run faults/);
});
