/** Runs on chats, seen from outside: same bits however they are divided, each row once an epoch, and what is refused. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { longTest, sharedTest as test } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { type Ended, essence, losses, metricLines } from "./runs.ts";

const TIMEOUT = { timeout: 120_000 };
const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;
const fixture = (name: string): string => fileURLToPath(new URL(`../fixtures/chat/${name}`, import.meta.url));
const TOKENIZER = fixture("bytes");
const TEMPLATE = fixture("templates/chatml.jinja");

/** Chats of 1 to 3 turns, whose lengths differ much. */
const ROWS = Array.from({ length: 24 }, (_, i) => ({
  messages: Array.from({ length: 1 + i % 3 }, (_, turn) => [
    { role: "user", content: `Question ${i}.${turn}${"?".repeat(1 + i % 5)}` },
    { role: "assistant", content: `Answer ${"a".repeat(i)}` },
  ]).flat(),
}));
const JSON_LINES = ROWS.map((row) => `${JSON.stringify(row)}\n`).join("");

function flagsIn(folder: TemporaryDirectory, data: string, out: string, ...more: readonly string[]): readonly string[] {
  return [
    ...["vocab=512", "--data", data, "--tokenizer", TOKENIZER, "--chat-template", TEMPLATE, "--steps", "9"],
    ...["--global-batch", "4", "--sequence-length", "64", "--sample-tokens", "0", "--log-every", "1"],
    ...["--cache", folder.file("cache"), "--out", folder.file(out), ...more],
  ];
}

function succeeds(ended: Ended): void {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
}

test(
  "a run on chats gives the same bits sharded, replicated, on one rank, and resumed on another number",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const data = folder.write("chats.jsonl", JSON_LINES);
    const first = await run(flagsIn(folder, data, "fsdp"));
    succeeds(first);
    assert.match(
      first.stderr,
      /24 samples of at most 64 tokens, \d+ in all, \d+ of them \([\d.]+ %\) trained on: an epoch is 6 steps/,
    );
    // The model keeps the template that it was trained with.
    const saved = readFileSync(folder.file("fsdp/model/chat_template.jinja"), "utf8");
    assert.equal(saved, readFileSync(TEMPLATE, "utf8"));
    const whole = metricLines(folder, "fsdp").map(essence);
    assert.equal(whole.length, 9);
    succeeds(await run(flagsIn(folder, data, "ddp", "--strategy", "ddp")));
    assert.deepEqual(metricLines(folder, "ddp").map(essence), whole);
    succeeds(await run(flagsIn(folder, data, "alone", "--micro-batches", "2"), { ranks: 1 }));
    assert.deepEqual(metricLines(folder, "alone").map(essence), whole);
    // Step 4 is in the middle of an epoch.
    succeeds(await run(flagsIn(folder, data, "half", "--stop-after", "4")));
    succeeds(await run(flagsIn(folder, data, "half", "--resume", "auto", "--micro-batches", "2"), { ranks: 1 }));
    assert.deepEqual(metricLines(folder, "half").map(essence), whole);
    // All of them read the samples that the first one made.
    assert.deepEqual(readdirSync(folder.file("cache")).filter((name) => name.startsWith("samples-")).length, 1);
    succeeds(await run(flagsIn(folder, data, "all", "--loss-on", "all")));
    assert.notDeepEqual(metricLines(folder, "all").map(essence), whole);
  },
);

longTest(
  "samples packed by bfd share rows, with the same bits sharded and replicated, and the same loss",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const rows = Array.from({ length: 24 }, (_, i) => ({ prompt: `${i}?`, completion: ` ${"a".repeat(1 + i)}` }));
    const data = folder.write("rows.jsonl", rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
    const packed = ["--packing", "bfd", "--steps", "3", "--global-batch", "2"];
    const sharded = await run(flagsIn(folder, data, "fsdp", ...packed));
    succeeds(sharded);
    const [, numRows = ""] =
      /24 samples of at most 64 tokens, .* trained on; in (\d+) rows, of which [\d.]+ % are padding/
        .exec(sharded.stderr) ?? [];
    assert.ok(Number(numRows) > 0 && Number(numRows) < 12, sharded.stderr);
    const whole = metricLines(folder, "fsdp").map(essence);
    succeeds(await run(flagsIn(folder, data, "ddp", ...packed, "--strategy", "ddp")));
    assert.deepEqual(metricLines(folder, "ddp").map(essence), whole);
    // Without learning, the loss over all targets is one number, whether samples share rows or not.
    const all = ["--steps", "1", "--eval-data", data, "--learning-rate", "0"];
    succeeds(await run(flagsIn(folder, data, "apart", ...all)));
    succeeds(await run(flagsIn(folder, data, "packed", ...all, "--packing", "bfd")));
    const [apart = NaN, together = NaN] = ["apart", "packed"].map((out) => {
      const { eval_loss: loss }: { eval_loss: number } = JSON.parse(metricLines(folder, out).at(-1) ?? "");
      return loss;
    });
    assert.ok(Math.abs(apart - together) <= 1e-6 * apart, `${apart} apart, ${together} together`);
  },
);

longTest("a run on chats takes JSON arrays and gzip, and held-out chats", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const array = folder.write("chats.json", JSON.stringify(ROWS, null, 2));
  const zipped = folder.write("chats.jsonl.gz", gzipSync(JSON_LINES));
  succeeds(await run(flagsIn(folder, array, "array", "--steps", "2")));
  succeeds(await run(flagsIn(folder, zipped, "zipped", "--steps", "2", "--eval-data", array)));
  const [lines, held] = ["array", "zipped"].map((out) => losses(folder, out));
  assert.deepEqual(held, lines);
  assert.match(metricLines(folder, "zipped").at(-1) ?? "", /"eval_loss":\d/);
});

test("a run on chats leaves out rows that do not fit if it is told to, and counts them aloud", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const data = folder.write(
    "a.jsonl",
    `${JSON_LINES}{"chat": []}\n\n{"messages": [{"role": "user", "content": "x"}]}\nnot json\n${
      JSON.stringify(ROWS[0])
    }\n`,
  );
  const { code, stderr } = await run(flagsIn(folder, data, "out", "--skip-bad-rows", "--steps", "2"));
  assert.equal(code, 0, stderr);
  assert.match(
    stderr,
    /data: Skipped 3 rows that did not fit: .*a\.jsonl:25: expected the columns .*a\.jsonl:27: .*a\.jsonl:28: expected one JSON object a line/,
  );
  assert.match(stderr, /25 samples of at most 64 tokens/);
  const none = folder.write("none.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n');
  const empty = await run(flagsIn(folder, none, "none", "--skip-bad-rows"), { ranks: 1 });
  assert.equal(empty.code, 2);
  assert.match(
    empty.stderr,
    /data: expected rows to train on, got none in '.*none\.jsonl', of which 1 row did not fit; the first is/,
  );
});

test("a run on chats refuses a row without a target by file and line, on all ranks at once", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const data = folder.write("a.jsonl", `${JSON_LINES}{"messages": [{"role": "user", "content": "x"}]}\n`);
  const { code, stderr } = await run(flagsIn(folder, data, "out"));
  assert.equal(code, 2, stderr);
  assert.match(stderr, /a\.jsonl:25: data: expected a token to train on, got messages of 'user' only/);
  assert.doesNotMatch(stderr, /\n {4}at /, "no stack is shown");
});
