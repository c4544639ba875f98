/** `npm run adapt`: fine-tuning beside what TRL gave, and what it refuses. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { longTest, sharedTest as test } from "../support/share.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));

function adapt(...flags: readonly string[]) {
  const args = ["scripts/runtime.mjs", "bun", "scripts/adapt/main.ts", ...flags];
  const { PEER_PYTHON: _, ...env } = process.env;
  return spawnSync("node", args, { cwd: root, encoding: "utf8", env });
}

/** The object of the last line. */
function found(stdout: string) {
  return JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
}

test("tokens, masks and losses of fine-tuning are those that TRL gave", { timeout: 120_000 }, () => {
  const { status, stdout, stderr } = adapt("--json", "--only", "tokens and masks");
  assert.equal(status, 0, stdout + stderr);
  const { passed, failed, skipped, items } = found(stdout);
  assert.deepEqual([passed, failed, skipped, items.length], [1, 0, 0, 1]);
  assert.ok(items[0].chats_assistant_targets > 0);
  const losses = adapt("--json", "--only", "float32, 1 rank");
  assert.equal(losses.status, 0, losses.stdout + losses.stderr);
  assert.equal(found(losses.stdout).passed, 2);
});

longTest("adapt has no item that fails, and tells which need the peer", { timeout: 900_000 }, () => {
  const { status, stdout, stderr } = adapt("--json");
  assert.equal(status, 0, stdout + stderr);
  const { failed, skipped, items } = found(stdout);
  assert.equal(failed, 0);
  const alone = items.filter(({ pass }: { readonly pass: boolean | null }) => pass === null);
  assert.equal(alone.length, skipped);
  for (const { reason } of alone) assert.match(reason, /--peer trl/);
});

test("adapt refuses peers, items and flags that it does not know", () => {
  const { status, stderr } = adapt("--peer", "axolotl", "--only", "nothing of it", "--al");
  assert.equal(status, 2);
  assert.match(stderr, /--al: expected a known flag/);
  assert.match(stderr, /--peer: expected trl, got 'axolotl'/);
  assert.match(stderr, /--only: expected a part of an item's name, got 'nothing of it'/);
  assert.match(
    adapt("--peer", "trl").stderr,
    /PEER_PYTHON: expected a Python that has torch, transformers, peft and trl/,
  );
});
