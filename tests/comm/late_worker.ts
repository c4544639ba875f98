/** A thread that fills in all but the first of some shared words, late and from the last to the second. @module */
import { blockFor } from "../../src/runtime/clock.ts";
import { workerScope } from "../../src/runtime/worker_scope.ts";

globalThis.addEventListener("message", (event: Event) => {
  if (!(event instanceof MessageEvent)) return;
  const { words, shared }: { readonly words: Int32Array; readonly shared: Int32Array } = event.data;
  blockFor(200);
  for (let i = words.length - 1; i > 0; i--) Atomics.store(shared, i, words[i] ?? NaN);
});
workerScope().postMessage("runs");
