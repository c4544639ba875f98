/** Deadlines of ranks that wait for files and text. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { ALONE, together } from "../../src/checkpoint/ranks.ts";
import type { Ranks } from "../../src/checkpoint/ranks.ts";
import { ProcessGroup } from "../../src/comm/process_group.ts";
import { createLoopbackWorld, openLoopback } from "../../src/comm/transports/loopback.ts";
import { Logger } from "../../src/runtime/log.ts";
import { openTokenData } from "../../src/train/data.ts";
import { openCommDevice } from "../support/comm_device.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const HOUR = 3600;
const TOKENIZER = fileURLToPath(new URL("../../examples/data", import.meta.url));

/** A group that writes down its deadline whenever it waits. */
function watched(timeoutSeconds: number): { readonly ranks: Ranks; readonly waits: number[] } {
  const waits: number[] = [];
  const ranks: Ranks = {
    rank: 0,
    size: 2,
    timeoutSeconds,
    throwTogether(error): void {
      waits.push(this.timeoutSeconds);
      if (error !== undefined) throw error;
    },
    exchangeText: (text) => [text, text],
  };
  return { ranks, waits };
}

test("together() waits for long, and leaves the deadline as it was", async () => {
  const { ranks, waits } = watched(600);
  assert.equal(await together(ranks, "save", () => Promise.resolve(7)), 7);
  await assert.rejects(together(ranks, "save", () => Promise.reject(new Error("disk full"))), /disk full/);
  assert.equal(waits.length, 2);
  for (const seconds of waits) assert.ok(seconds >= 12 * HOUR, `${seconds} s`);
  assert.equal(ranks.timeoutSeconds, 600);
  const longer = watched(1e6);
  await together(longer.ranks, "save", () => {});
  assert.deepEqual(longer.waits, [1e6]);
  assert.equal(await together(ALONE, "save", () => 8), 8);
});

test("openTokenData() waits for long while rank 0 tokenizes", async () => {
  using directory = temporaryDirectory();
  directory.write("text/a.txt", "Once upon a time");
  const device = await openCommDevice(2 ** 24);
  using group = new ProcessGroup(openLoopback(createLoopbackWorld(1), 0, device, { timeoutSeconds: 5 }));
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
