/** Old garbage is freed on request where the runtime would wait long. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { freeGarbage } from "../../src/runtime/garbage.ts";
import { runtime } from "../../src/runtime/processes.ts";

/** Objects that nothing holds any more. */
function dropped(): readonly WeakRef<object>[] {
  return Array.from({ length: 1_000 }, () => new WeakRef({}));
}

test("freeGarbage() frees what nothing holds on Bun, and does nothing on Deno", async () => {
  const refs = dropped();
  // What a WeakRef is made of lives until the turn ends.
  await new Promise((resolve) => setTimeout(resolve, 1));
  assert.equal(refs.filter((ref) => ref.deref() !== undefined).length, refs.length);
  await new Promise((resolve) => setTimeout(resolve, 1));
  freeGarbage();
  const left = refs.filter((ref) => ref.deref() !== undefined).length;
  if (runtime().name === "bun") assert.ok(left < 10, `${left} of ${refs.length} are left`);
  else assert.equal(left, refs.length);
});
