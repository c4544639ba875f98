/** Reading an abort while another rank writes it. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ABORT_WORDS, AbortArea } from "../../src/comm/control/abort.ts";

/** An area of which only the first word is written yet, and all words as they will be. */
function halfSet(rank: number, reason: string): { readonly words: Int32Array; readonly shared: Int32Array } {
  const words = new Int32Array(ABORT_WORDS);
  new AbortArea(words).set(rank, reason);
  const shared = new Int32Array(new SharedArrayBuffer(ABORT_WORDS * 4));
  shared.set(words.subarray(0, 1));
  return { words, shared };
}

test("AbortArea.cause is whole although the rank that sets it is off its core for a while", async () => {
  const order = halfSet(3, "row 7 is too long");
  const worker = new Worker(new URL("./late_worker.ts", import.meta.url), { type: "module" });
  await new Promise((resolve) => worker.addEventListener("message", resolve, { once: true }));
  worker.postMessage(order);
  assert.deepEqual(new AbortArea(order.shared).cause, { rank: 3, reason: "row 7 is too long" });
  worker.terminate();
});

test("AbortArea.cause names a rank that ended before it gave a reason", () => {
  const area = new AbortArea(halfSet(2, "never written").shared);
  assert.deepEqual(area.cause, { rank: 2, reason: "it ended before it gave a reason" });
  area.set(1, "later");
  assert.equal(area.cause?.rank, 2);
});

test("AbortArea.set() keeps the first reason, cut to what there is room for", () => {
  const area = new AbortArea(new Int32Array(ABORT_WORDS));
  assert.equal(area.cause, undefined);
  area.set(-1, "é".repeat(5000));
  area.set(0, "later");
  assert.deepEqual(area.cause, { rank: -1, reason: "é".repeat(2048) });
});
