/** Ranks that wait for one that tokenizes. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { ALONE } from "../../src/checkpoint/ranks.ts";
import { createLoopbackWorld, openLoopback } from "../../src/comm/data/loopback.ts";
import { Logger } from "../../src/runtime/log.ts";
import { openTokenData } from "../../src/train/data.ts";
import { openCommDevice } from "../support/comm_device.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const HOUR = 3600;
const TOKENIZER = fileURLToPath(new URL("../../examples/data", import.meta.url));

test("ALONE is a group of one that needs no planes", async () => {
  assert.equal(await ALONE.together("save", () => 8), 8);
  await assert.rejects(ALONE.together("save", () => Promise.reject(new Error("disk full"))), /disk full/);
  assert.deepEqual(ALONE.exchangeText("a", "text"), ["a"]);
});

test("openTokenData() waits for long while rank 0 tokenizes", async () => {
  using directory = temporaryDirectory();
  directory.write("text/a.txt", "Once upon a time");
  const device = await openCommDevice(2 ** 24);
  using group = openLoopback(createLoopbackWorld(1), 0, device, { timeoutSeconds: 5 });
  const deadlines: number[] = [];
  const log = new Logger({
    sink: ({ message }) => void (/^Tokenizing/.test(message) && deadlines.push(group.timeoutSeconds)),
  });
  const config = {
    data: [`${directory.path}/text`],
    textField: "text",
    tokenizer: TOKENIZER,
    sequenceLength: 8,
    cache: `${directory.path}/cache`,
  };
  const { tokens } = await openTokenData(config, undefined, group, log);
  assert.ok(tokens.length > 0);
  assert.equal(deadlines.length, 1);
  assert.ok((deadlines[0] ?? 0) >= 12 * HOUR);
  assert.equal(group.timeoutSeconds, 5);
});
