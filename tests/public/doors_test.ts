/** The suite of the public API, which needs `@std/testing` of JSR. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import process from "node:process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { RUNTIME } from "../support/rank_process.ts";

const suite = fileURLToPath(new URL("doors_suite.ts", import.meta.url));

function deno(...args: readonly string[]) {
  return spawnSync(process.execPath, args, { encoding: "utf8", env: { ...process.env, NO_COLOR: "1" } });
}

/** Why the suite cannot run here; false if it can. */
function lacking(): string | false {
  if (RUNTIME !== "deno") return "Deno alone imports packages of JSR";
  const { status, stderr } = deno("cache", "--quiet", suite);
  if (status === 0) return false;
  if (!/jsr/i.test(stderr)) assert.fail(`the suite does not load: ${stderr}`);
  return "JSR does not answer, from which @std/testing comes";
}

test("values and signatures of each door are those of the snapshots", { skip: lacking(), timeout: 120_000 }, () => {
  const { status, stdout, stderr } = deno("test", "-A", suite);
  assert.equal(status, 0, stdout + stderr);
});
