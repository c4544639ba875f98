/** `npm run mesh`: checkpoints from mesh to mesh. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { longTest, sharedTest as test } from "../support/share.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));

function mesh(...flags: readonly string[]) {
  const args = ["scripts/runtime.mjs", "bun", "scripts/mesh/main.ts", ...flags];
  return spawnSync("node", args, { cwd: root, encoding: "utf8" });
}

longTest("checkpoints go from each of twelve meshes to each other one", { timeout: 600_000 }, () => {
  const { status, stdout, stderr } = mesh("--json");
  assert.equal(status, 0, stdout + stderr);
  const { passed, failed, items } = JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
  assert.deepEqual([passed, failed, items.length], [144, 0, 144]);
});

test("mesh refuses families and flags that it does not know", () => {
  const { status, stdout } = mesh("--family", "lama", "--al");
  assert.equal(status, 2);
  assert.match(stdout, /--al: expected a known flag/);
  assert.match(stdout, /--family: expected one of .*llama.*, got 'lama'/);
});
