/** Rows with labels as samples: the tokens of TRL's KTOTrainer, with other rows' answers too; files of them, and what is refused. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { blockSamples, labeledIds } from "../../../src/data/chat/encode_labeled.ts";
import { labeledOf } from "../../../src/data/chat/labeled.ts";
import { loadChatTemplates } from "../../../src/data/chat/load_template.ts";
import { openRows } from "../../../src/data/rows/open_rows.ts";
import { encodeInMemory, sampleCache, type SampleOptions } from "../../../src/data/samples/sample_cache.ts";
import type { TokenSample } from "../../../src/data/samples/sample.ts";
import { BYTE_TOKENIZER, loadTokenizer } from "../../../src/data/tokenizer.ts";
import { rowsOf } from "../../../src/data/token_rows.ts";
import { ConfigError } from "../../../src/errors.ts";
import type { JsonObject } from "../../../src/json.ts";
import { temporaryDirectory } from "../../support/temporary.ts";

const PLACE = { file: "rows.jsonl", line: 3 };
const fixture = (name: string): string => fileURLToPath(new URL(`../../fixtures/${name}`, import.meta.url));
const { tokens: CASES } = z.object({
  tokens: z.array(z.object({
    name: z.string(),
    tokenizer: z.string(),
    template: z.string().nullable(),
    maxLength: z.number(),
    rows: z.array(z.record(z.string(), z.unknown())),
    samples: z.array(z.array(z.object({ ids: z.array(z.number()), mask: z.array(z.number()) }))),
  })),
}).parse(JSON.parse(readFileSync(fixture("preference/kto.json"), "utf8")));

const contentsOf = (value: JsonObject): ReturnType<typeof labeledOf> =>
  labeledOf({ ...PLACE, value }, { name: "data" });
const maskOf = ({ ids, labels }: TokenSample): unknown => ({
  ids: [...ids],
  mask: Array.from(labels, (label, place) => {
    if (label >= 0) assert.equal(label, ids[place]);
    return Number(label >= 0);
  }),
});

describe("samples of rows with labels have the ids and completion masks of TRL's KTOTrainer", () => {
  for (const { name, tokenizer: kind, template, maxLength, rows, samples } of CASES) {
    test(name, async () => {
      const tokenizer = await loadTokenizer(fixture(`chat/${kind}`));
      const templates = template === null
        ? undefined
        : await loadChatTemplates(tokenizer.path, fixture(`chat/templates/${template}.jinja`));
      const encoding = { tokenizer, templates, lossOn: undefined, maxLength, name: "data" };
      const found = blockSamples(rows.map((row) => labeledIds(contentsOf(row), PLACE, encoding)), maxLength);
      assert.deepEqual(found.map(maskOf), samples.flat());
      assert.deepEqual(
        found.map(({ isDesirable }) => isDesirable),
        rows.flatMap(({ label }) => [label, label]),
      );
    });
  }
});

const SAMPLES: SampleOptions = {
  ...{ tokenizer: BYTE_TOKENIZER, templates: undefined, lossOn: undefined, maxLength: 64, skipBadRows: true },
  ...{ name: "data", textField: "text", isPreference: true, labelBlock: 4 },
};

test("files of rows with labels keep them, and give each prompt another answer of its block", async () => {
  using folder = temporaryDirectory();
  const lines = Array.from(
    { length: 10 },
    (_, i) => JSON.stringify({ prompt: `p${i} `, completion: `c${i}`, label: i % 3 === 0 }),
  );
  lines.splice(5, 0, '{"prompt": "p", "completion": "c"}');
  const source = await openRows([folder.write("rows.jsonl", lines.join("\n"))], { ...SAMPLES, preference: "labels" });
  assert.ok(source !== undefined);
  const cache = sampleCache(source, SAMPLES, folder.file("cache"));
  await cache.build();
  const kept = cache.open();
  const made = await encodeInMemory(source, SAMPLES);
  assert.equal(made.fingerprint, kept.fingerprint);
  const others = [3, 0, 1, 2, 7, 4, 5, 6, 9, 8];
  for (const samples of [made, kept]) {
    assert.equal(samples.length, 20);
    assert.equal(samples.summary.skipped, 1);
    const rows = rowsOf(samples, 64, "none", { isPairs: true });
    assert.equal(rows.numRows, 10);
    for (const [i, other] of others.entries()) {
      const texts = await Promise.all(
        [2 * i, 2 * i + 1].map(async (row) =>
          BYTE_TOKENIZER.decode((await samples.read(row)).ids, { skipSpecial: true })
        ),
      );
      assert.deepEqual(texts.map((text) => text.replace(/[^pc\d ]/g, "")), [`p${i} c${i}`, `p${i} c${other}`]);
    }
    const { isDesirable, pairs } = await rows.load([0, 3, 4]);
    assert.deepEqual([...isDesirable ?? []], [1, 1, 0]);
    assert.deepEqual([...pairs ?? []], [0, 3, 4]);
  }
  kept.close();
});

test("labeledOf() refuses rows without a label, and labels that are none, by file and line", () => {
  const cases: readonly (readonly [JsonObject, RegExp])[] = [
    [
      { prompt: "a", completion: "b" },
      /rows\.jsonl:3: data: expected the columns "prompt", "completion" and "label", got "prompt", "completion": rename/,
    ],
    [
      { prompt: "a", chosen: "b", rejected: "c" },
      /got "prompt", "chosen", "rejected": pairs are learned by '--preference dpo'/,
    ],
    [{ prompt: "a", completion: "b", label: "good" }, /expected true or false under "label", got "good"/],
    [{ prompt: "a", completion: "b", label: 2 }, /expected true or false under "label", got 2/],
    [
      { prompt: "a", completion: [], label: true },
      /two texts or two lists of messages under "prompt" and "completion"/,
    ],
  ];
  for (const [value, message] of cases) assert.throws(() => contentsOf(value), { name: "ConfigError", message });
  const encoding = { ...SAMPLES, maxLength: 3 };
  assert.throws(
    () => labeledIds(contentsOf({ prompt: "abcd", completion: "b", label: 1 }), PLACE, encoding),
    ConfigError,
  );
  assert.equal(contentsOf({ prompt: "a", completion: "b", label: 0 }).isDesirable, false);
});
