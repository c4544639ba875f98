/** Rows of preferences as pairs of samples: the tokens of TRL's DPOTrainer, other columns, and what is refused. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { z } from "zod";
import { encodePair } from "../../../src/data/chat/encode_pair.ts";
import { loadChatTemplates } from "../../../src/data/chat/load_template.ts";
import { pairOf } from "../../../src/data/chat/preference.ts";
import { loadTokenizer } from "../../../src/data/tokenizer.ts";
import { ConfigError } from "../../../src/errors.ts";
import type { JsonObject } from "../../../src/json.ts";
import { openTemplate } from "./fixtures.ts";
import { fileURLToPath } from "node:url";

const PLACE = { file: "pairs.jsonl", line: 3 };
const fixture = (name: string): string => fileURLToPath(new URL(`../../fixtures/${name}`, import.meta.url));
const TOKENS = z.object({
  tokens: z.array(z.object({
    name: z.string(),
    tokenizer: z.string(),
    template: z.string().nullable(),
    maxLength: z.number(),
    rows: z.array(z.record(z.string(), z.unknown())),
    pairs: z.array(z.array(z.object({ ids: z.array(z.number()), mask: z.array(z.number()) }))),
  })),
});
const casesOf = (file: string): z.infer<typeof TOKENS>["tokens"] =>
  TOKENS.parse(JSON.parse(readFileSync(fixture(`preference/${file}`), "utf8"))).tokens;
/** What each trainer of TRL made; the begin-of-text token of both tokenizers is 0. */
const TRAINERS = [
  ["DPOTrainer", casesOf("expected.json"), undefined],
  ["ORPOTrainer", casesOf("orpo.json"), { beginId: 0 }],
] as const;

const contentsOf = (value: JsonObject): ReturnType<typeof pairOf> => pairOf({ ...PLACE, value }, { name: "data" });

describe("encodePair() gives the ids and completion masks of TRL's", () => {
  const cases = TRAINERS.flatMap(([trainer, cases, ends]) => cases.map((one) => ({ trainer, ends, ...one })));
  for (const { trainer, ends, name, tokenizer: kind, template, maxLength, rows, pairs } of cases) {
    test(`${trainer}: ${name}`, async () => {
      const tokenizer = await loadTokenizer(fixture(`chat/${kind}`));
      const templates = template === null
        ? undefined
        : await loadChatTemplates(tokenizer.path, fixture(`chat/templates/${template}.jinja`));
      assert.ok(rows.length > 0 && rows.length === pairs.length);
      for (const [i, row] of rows.entries()) {
        const encoding = { tokenizer, templates, lossOn: undefined, maxLength, name: "data", ends };
        const pair = encodePair(contentsOf(row), PLACE, encoding);
        const found = pair.map(({ ids, labels }) => ({
          ids: [...ids],
          mask: Array.from(labels, (label, place) => {
            if (label >= 0) assert.equal(label, ids[place]);
            return Number(label >= 0);
          }),
        }));
        assert.deepEqual(found, pairs[i], `row ${i}`);
      }
    });
  }
});

test("pairOf() reads ShareGPT's and Alpaca's columns, single messages, and prompts that are there twice", () => {
  const [chosen, rejected] = ["good", "bad"].map((content) => [{ role: "assistant", content }]);
  const prompt = [{ role: "user", content: "Hi" }];
  const expected = { kind: "chat", prompt, chosen, rejected, tools: undefined, variables: {} };
  const rows: readonly JsonObject[] = [
    { prompt, chosen, rejected },
    { prompt, chosen: chosen?.[0], rejected: rejected?.[0] },
    {
      prompt: "Hi",
      chosen: [...prompt, ...chosen ?? []],
      rejected: [{ content: "Hi", role: "user" }, ...rejected ?? []],
    },
    {
      conversations: [{ from: "human", value: "Hi" }],
      chosen: { from: "gpt", value: "good" },
      rejected: { from: "gpt", value: "bad" },
    },
    { instruction: "Hi", chosen: "good", rejected: "bad" },
  ];
  for (const row of rows) assert.deepEqual(contentsOf(row), expected, JSON.stringify(row));
});

test("rows that are no preferences are refused by file and line, with what was found", async () => {
  const { tokenizer, templates } = await openTemplate("bytes", "chatml");
  const encoding = { tokenizer, templates, lossOn: undefined, maxLength: 24, name: "data" };
  const message = (role: string, content: string): JsonObject => ({ role, content });
  const [user, good] = [[message("user", "Hi")], [message("assistant", "good")]];
  const cases: readonly (readonly [row: JsonObject, message: RegExp])[] = [
    [
      { prompt: "a", completion: "b" },
      /expected the columns "chosen" and "rejected", .*, got "prompt", "completion": rename/,
    ],
    [{ chosen: "a", rejected: 3 }, /expected two texts, two lists of messages or two messages .*, got "a" and 3/],
    [{ prompt: 3, chosen: "a", rejected: "b" }, /expected a string under "prompt", got 3/],
    [{ chosen: "", rejected: "b" }, /that begin with the prompt, got an empty one/],
    [
      { chosen: user, rejected: good },
      /or lists under "chosen" and "rejected" that begin with the same ones, got lists that/,
    ],
    [
      { prompt: user, chosen: [], rejected: good },
      /expected a list of messages under "chosen", at least one, got \[\]/,
    ],
    [
      { prompt: { a: 1 }, chosen: good, rejected: good },
      /expected a list of messages under "prompt", as "chosen" is one, got/,
    ],
    [
      { prompt: user, chosen: [{ from: "nobody", value: "x" }], rejected: good },
      /expected one of .* under "from" of chosen\[0\], got "nobody"/,
    ],
    [
      { prompt: "a very long prompt of bytes, longer than a sample", chosen: "b", rejected: "c" },
      /expected a token of the answers among the first 24, got a prompt of \d+ tokens: take a longer sequenceLength/,
    ],
    [
      { prompt: "", chosen: "", rejected: "" },
      /expected an answer under "chosen" with a token that follows others, got 1 token, 0/,
    ],
  ];
  for (const [row, expected] of cases) {
    const act = (): unknown => encodePair(contentsOf(row), PLACE, encoding);
    assert.throws(act, (error: unknown) => {
      assert.ok(error instanceof ConfigError, String(error));
      assert.equal(error.problems[0]?.where, "pairs.jsonl:3");
      assert.match(error.message, expected);
      return true;
    });
  }
});
