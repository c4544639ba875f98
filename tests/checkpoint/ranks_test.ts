/** Ranks that wait for one that tokenizes. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ALONE } from "../../src/checkpoint/format/ranks.ts";
import { createLoopbackWorld, openLoopback } from "../../src/comm/data/loopback.ts";
import { buildModel } from "../../src/models/registry.ts";
import { textData } from "../../src/train/text_data.ts";
import { openCommDevice } from "../support/comm_device.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const HOUR = 3600;

test("ALONE is a group of one that needs no planes", async () => {
  assert.equal(await ALONE.together("save", () => 8), 8);
  await assert.rejects(ALONE.together("save", () => Promise.reject(new Error("disk full"))), /disk full/);
  assert.deepEqual(ALONE.exchangeText("a", "text"), ["a"]);
});

test("textData() waits for long while rank 0 tokenizes", async () => {
  using directory = temporaryDirectory();
  directory.write("text/a.txt", "Once upon a time");
  const device = await openCommDevice(2 ** 24);
  using group = openLoopback(createLoopbackWorld(1), 0, device, { timeoutSeconds: 5 });
  const deadlines: number[] = [];
  const sizes = { vocab_size: 257, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2 };
  const model = buildModel(device, { model_type: "llama", ...sizes });
  using data = await textData({ group }, model, directory.file("text"), {
    sequenceLength: 8,
    batch: 1,
    cache: directory.file("cache"),
    onTokenize: () => deadlines.push(group.timeoutSeconds),
  });
  assert.equal(data.numSamples, 2);
  assert.equal(deadlines.length, 1);
  assert.ok((deadlines[0] ?? 0) >= 12 * HOUR);
  assert.equal(group.timeoutSeconds, 5);
});
