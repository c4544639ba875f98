/** The suite of the public API, which needs `@std/testing` of JSR; and its snapshots, which must be true where it cannot run too. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { RUNTIME } from "../support/rank_process.ts";
import { doors, signaturesOf, valuesOfDoor } from "./doors.ts";

const suite = fileURLToPath(new URL("doors_suite.ts", import.meta.url));
const snapshots = readFileSync(new URL("__snapshots__/doors_suite.ts.snap", import.meta.url), "utf8");

/** The texts of a list that was taken as a snapshot: one a line, in quotes, in a template of JavaScript. */
function snapshotOf(name: string): readonly string[] {
  const head = `snapshot[\`${name} 1\`] = \`\n[\n`;
  const begin = snapshots.indexOf(head);
  assert.ok(begin >= 0, `there is no snapshot '${name}'`);
  const text = snapshots.slice(begin + head.length, snapshots.indexOf("\n]\n`;", begin));
  return text.split("\n").map((line) => line.trim().slice(1, -2).replaceAll(/\\([\\`$])/g, "$1"));
}

function deno(...args: readonly string[]) {
  return spawnSync(process.execPath, args, { encoding: "utf8", env: { ...process.env, NO_COLOR: "1" } });
}

/** The reason why the suite cannot run here; false if it can. */
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

for (const [name, door] of doors()) {
  test(`snapshots of ${name} were taken of the door as it is`, { timeout: 120_000 }, async () => {
    assert.deepEqual(snapshotOf(`${name} > exports these values`), await valuesOfDoor(door));
    // Deno prints them, also where the test runs under Bun.
    if (RUNTIME === "deno") assert.deepEqual(snapshotOf(`${name} > has these signatures`), signaturesOf(door));
  });
}
