/** Words that follow numbers and lists. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../src/device/registry.ts";
import { countOf, whichAre } from "../src/words.ts";

test("countOf() agrees with its noun", () => {
  assert.deepEqual([0, 1, 2].map((count) => countOf(count, "rank")), ["0 ranks", "1 rank", "2 ranks"]);
  assert.equal(countOf(2, "micro-batch", "micro-batches"), "2 micro-batches");
});

test("whichAre() lists names", () => {
  assert.equal(whichAre(["llama", "qwen2", "gpt2"], "supported"), "'llama', 'qwen2' and 'gpt2' are supported");
  assert.throws(() => openDevice("tpu"), {
    name: "UnsupportedError",
    message: /^Cannot open device 'tpu': 'cpu'.* and '\w+' are available$/,
  });
});
