/** Text that ranks and hosts have in common: who reads it, and what is said where they differ. @module */
import assert from "node:assert/strict";
import { readdirSync, writeFileSync } from "node:fs";
import process from "node:process";
import { test as ownTest } from "node:test";
import { fileURLToPath } from "node:url";
import { openModel, type TextData, textData, type TextDataOptions } from "../../mod.ts";
import { openProcessGroup } from "../../doors/comm.ts";
import { openDevice } from "../../doors/device.ts";
import { longTest } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { run } from "./runs.ts";
import { openOwnText, type TextOrders, type TextReport } from "./text_ranks.ts";

const TIMEOUT = { timeout: 120_000 };
const script = fileURLToPath(new URL("scripts/text_reads.ts", import.meta.url));

async function reports(orders: TextOrders): Promise<readonly TextReport[]> {
  return valuesOf<TextReport>(await world(orders.texts.length, openOwnText, { data: orders }));
}

ownTest("textData() gives ranks of hosts with equal copies one text", async () => {
  using folder = temporaryDirectory();
  const texts = ["a", "a", "b", "b"].map((host) =>
    folder.write(`${host}/text.txt`, "the same words on both hosts, all of them")
  );
  const caches = ["a", "a", "b", "b"].map((host) => folder.file(`cache-${host}`));
  for (const more of [{}, { caches }]) {
    const all = await reports({ localWorldSize: 2, texts, ...more });
    assert.deepEqual(all.map(({ error }) => error), ["", "", "", ""]);
    assert.equal(new Set(all.map(({ dataset }) => dataset)).size, 1);
  }
  // Each host has a file of its own where they share no folder.
  for (const cache of new Set(caches)) {
    assert.equal(readdirSync(cache).filter((name) => name.startsWith("tokens-")).length, 1);
  }
});

ownTest("textData() refuses what text and chats have no use for, by its key", async () => {
  using folder = temporaryDirectory();
  const text = folder.write("text.txt", "some words of plain text. ".repeat(20));
  const chat = folder.write("chat.jsonl", `${JSON.stringify({ prompt: "1 + 1 =", completion: " 2" })}\n`.repeat(4));
  const device = await openDevice("cpu", { memoryBytes: 2 ** 24 });
  const group = await openProcessGroup({ device });
  const sizes = {
    vocab_size: 257,
    hidden_size: 32,
    intermediate_size: 48,
    num_hidden_layers: 1,
    num_attention_heads: 4,
  };
  const model = await openModel({ device, group }, { model_type: "llama", ...sizes });
  const open = (file: string, more: Partial<TextDataOptions>): Promise<TextData> =>
    textData({ group }, model, file, { sequenceLength: 16, batch: 1, ...more });
  const refused = async (file: string, more: Partial<TextDataOptions>, message: RegExp): Promise<void> => {
    await assert.rejects(open(file, more), { name: "ConfigError", message });
  };
  await refused(
    chat,
    { packing: "wrapped" },
    /packing: expected 'none', 'bfd' or 'bfd-split' for chats .*got 'wrapped'/,
  );
  const missing = folder.file("none.jinja");
  await refused(
    chat,
    { chatTemplate: missing },
    /chatTemplate: expected a file of Jinja, got '.*', which is not there/,
  );
  await refused(
    chat,
    { chatTemplate: folder.path },
    /chatTemplate: expected a file of Jinja, got '.*', which is no file/,
  );
  await refused(text, { skipBadRows: true }, /skipBadRows: expected chats, .*got 'true' for text: leave it out/);
  const empty = folder.file("empty.jsonl");
  writeFileSync(empty, "");
  await refused(
    empty,
    { skipBadRows: true },
    /data: expected some text, got none in '.*empty\.jsonl': give files that/,
  );
  (await open(chat, {}))[Symbol.dispose]();
  (await open(text, { packing: "wrapped", skipBadRows: false }))[Symbol.dispose]();
  device.dispose();
});

ownTest("textData() refuses hosts with other text or another tokenizer on all ranks, naming a rank", async () => {
  using folder = temporaryDirectory();
  const words = "the same words on both hosts, all of them";
  const [first, second] = [folder.write("a.txt", words), folder.write("b.txt", words.replace("all", "ALL"))];
  const longer = folder.write("c.txt", `${words} and more`);
  const caches = [folder.file("cache-a"), folder.file("cache-b")];
  for (const more of [{}, { caches }]) {
    for (const other of [second, longer]) {
      const [one, two] = await reports({ localWorldSize: 1, texts: [first, other], ...more });
      assert.equal(one?.error, two?.error);
      assert.match(
        one?.error ?? "",
        /data: expected the text of rank 0 on all ranks: 1 file of 41 bytes, got 1 file of \d+ bytes/,
      );
      assert.match(
        one?.error ?? "",
        /with other contents or names on rank 1: copy the files of rank 0's host to all hosts/,
      );
    }
    const all = await reports({ localWorldSize: 1, texts: [first, first], tokenizers: ["bytes", "others"], ...more });
    for (const { error } of all) {
      assert.match(
        error,
        /tokenizer: expected the tokenizer of rank 0 on all ranks, got a different one on rank 1: copy the tokenizer files/,
      );
    }
  }
});

longTest(
  "a start whose text is known reads blocks of it on one rank, and none on the others",
  TIMEOUT,
  async (context) => {
    if (process.platform !== "linux") return context.skip("needs /proc/self/io");
    using folder = temporaryDirectory();
    const line = JSON.stringify({ text: "x".repeat(1000) });
    const numBytes = 24 * 2 ** 20;
    const text = folder.write("text.jsonl", `${line}\n`.repeat(Math.floor(numBytes / (line.length + 1))));
    // A text that was changed a moment ago is not kept: its time may be as coarse as two seconds.
    await new Promise((resolve) => setTimeout(resolve, 3000));
    const start = async (): Promise<Record<"rank" | "read" | "numSamples", number>[]> => {
      const { code, stdout, stderr } = await run([text, folder.file("cache")], { script, allowAll: true });
      assert.equal(code, 0, stderr);
      const found = [...stdout.matchAll(/\{.*\}/g)].map(([json]): Record<"rank" | "read" | "numSamples", number> =>
        JSON.parse(json)
      );
      return found.sort((a, b) => a.rank - b.rank);
    };
    const [first, second] = [await start(), await start()];
    assert.deepEqual(first.map(({ numSamples }) => numSamples), second.map(({ numSamples }) => numSamples));
    assert.ok((first[0]?.read ?? 0) > numBytes, `rank 0 read ${first[0]?.read} bytes at first`);
    const few = [first[1]?.read, second[0]?.read, second[1]?.read];
    for (const read of few) assert.ok(read !== undefined && read < 2 ** 21, `read ${few} bytes`);
  },
);
