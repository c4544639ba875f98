/** Old garbage is freed on request where the runtime would wait long. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { freeGarbage } from "../../src/runtime/garbage.ts";
import { runtime } from "../../src/runtime/processes.ts";

/** Objects that nothing holds any more. */
function dropped(): readonly WeakRef<object>[] {
  return Array.from({ length: 1_000 }, () => new WeakRef({}));
}

/** Tries until the runtime, which may collect at any time, has collected nothing by itself. */
const MOST_TRIES = 20;

/** How many of an array of dropped objects are left, before and after {@link freeGarbage}. */
async function leftAround(): Promise<{ readonly before: number; readonly after: number; readonly all: number }> {
  const refs = dropped();
  const left = (): number => refs.filter((ref) => ref.deref() !== undefined).length;
  // What a WeakRef is made of, and what it has given, lives until the turn ends.
  await new Promise((resolve) => setTimeout(resolve, 1));
  const before = left();
  await new Promise((resolve) => setTimeout(resolve, 1));
  freeGarbage();
  return { before, after: left(), all: refs.length };
}

test("freeGarbage() frees what nothing holds on Bun, and does nothing on Deno", async () => {
  const isBun = runtime().name === "bun";
  for (let tries = 0; tries < MOST_TRIES; tries++) {
    const { before, after, all } = await leftAround();
    const isUndisturbed = before === all && (isBun || after === all);
    if (!isUndisturbed) continue;
    if (isBun) assert.ok(after < 10, `${after} of ${all} are left`);
    return;
  }
  assert.fail(`objects were collected in each of ${MOST_TRIES} tries`);
});
