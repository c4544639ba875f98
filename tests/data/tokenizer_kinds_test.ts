/**
 * Tokenizers of all kinds against Python's `tokenizers` on awkward texts, whatever Unicode the runtime knows; and what is refused,
 * by name.
 *
 * @module
 */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { z } from "zod";
import { TokenizerPipeline } from "../../src/data/tokenizers/pipeline.ts";
import { replaceMatches } from "../../src/data/tokenizers/split.ts";
import { translateRegex } from "../../src/data/tokenizers/regex.ts";
import { loadTokenizer } from "../../src/data/tokenizer.ts";
import { ArgumentError, CheckpointError } from "../../src/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const FIXTURES = z.object({
  texts: z.array(z.string()),
  kinds: z.array(z.object({
    name: z.string(),
    tokenizer: z.record(z.string(), z.unknown()),
    ids: z.array(z.array(z.number())),
    decoded: z.array(z.string()),
    skipped: z.array(z.string()),
  })),
}).parse(JSON.parse(readFileSync(new URL("../fixtures/tokenizer/kinds.json", import.meta.url), "utf8")));

const CLASSES = z.record(z.string(), z.object({ count: z.number(), sha256: z.string() }))
  .parse(JSON.parse(readFileSync(new URL("../fixtures/tokenizer/classes.json", import.meta.url), "utf8")));

describe("loadTokenizer() gives the ids and texts of Python's", () => {
  for (const { name, tokenizer, ids, decoded, skipped } of FIXTURES.kinds) {
    test(name, async () => {
      using directory = temporaryDirectory();
      directory.write("tokenizer.json", JSON.stringify(tokenizer));
      const loaded = await loadTokenizer(directory.path);
      assert.ok(FIXTURES.texts.length > 40);
      for (const [i, text] of FIXTURES.texts.entries()) {
        const own = loaded.encode(text);
        assert.deepEqual(own, ids[i], JSON.stringify(text));
        assert.equal(loaded.decode(own), decoded[i], JSON.stringify(text));
        assert.equal(loaded.decode(own, { skipSpecial: true }), skipped[i], JSON.stringify(text));
      }
    });
  }
});

test("expressions match the characters that Oniguruma's do, whatever Unicode the runtime knows", () => {
  const all = Array.from({ length: 0x110000 }, (_, code) => code).filter((code) => code < 0xd800 || code > 0xdfff);
  const text = String.fromCodePoint(...all.slice(0, 0)) +
    Array.from({ length: 0x1100 }, (_, i) => all.slice(i * 256, i * 256 + 256)).map((codes) =>
      String.fromCodePoint(...codes)
    ).join("");
  for (const [pattern, { count, sha256 }] of Object.entries(CLASSES)) {
    const { source, flags } = translateRegex(pattern);
    const matched = text.match(new RegExp(source, flags)) ?? [];
    assert.equal(matched.length, count, pattern);
    assert.equal(createHash("sha256").update(matched.join("")).digest("hex"), sha256, pattern);
  }
});

/** A tokenizer of letters. */
const LETTERS = {
  version: "1.0",
  added_tokens: [],
  normalizer: null,
  pre_tokenizer: null,
  post_processor: null,
  decoder: null,
  model: { type: "BPE", vocab: { a: 0, b: 1, ab: 2 }, merges: ["a b"] },
};

test("loadTokenizer() refuses by name what is not known to give Python's ids", () => {
  const refused = (change: Readonly<Record<string, unknown>>, message: RegExp): void => {
    assert.throws(() => new TokenizerPipeline({ ...LETTERS, ...change }, "tokenizer.json"), (error) => {
      assert.ok(error instanceof CheckpointError, String(error));
      assert.match(error.message, message);
      return true;
    });
  };
  const { model } = LETTERS;
  refused({ chat: 1 }, /tokenizer\.json: chat: this key is not supported, got 1/);
  refused(
    { normalizer: { type: "Precompiled", precompiled_charsmap: "AAAA" } },
    /normalizer\.type: expected NFC, .*"Precompiled"/,
  );
  refused(
    { normalizer: { type: "NFC", form: 3 } },
    /normalizer\.form: this key of "NFC" is not supported, got 3; tokenize/,
  );
  refused(
    { normalizer: { type: "Sequence", normalizers: [{ type: "NFC" }, { type: "Nmt" }] } },
    /normalizer\.normalizers\[1\]\.type: .* got "Nmt"/,
  );
  refused(
    { pre_tokenizer: { type: "UnicodeScripts" } },
    /pre_tokenizer\.type: expected ByteLevel, .* got "UnicodeScripts"/,
  );
  const split = { type: "Split", behavior: "Isolated", invert: false };
  for (
    const [regex, what] of [
      [String.raw`(?<a>x)\k<a>`, "group"],
      [String.raw`\G`, String.raw`\\\\G`],
      ["(?i:ss)", "two letters"],
      [
        "(?i:é)",
        "beyond ASCII",
      ],
      ["(a", "unclosed group"],
      ["a)", "unmatched"],
      ["[a", "unclosed class"],
      ["a**", "repeated"],
      [String.raw`\p{Emoji}`, "Emoji"],
      [
        String.raw`\X`,
        "X",
      ],
      ["(?m:.)", "group"],
      ["[z-a]", "ut of order"],
      ["+", "repetition of nothing"],
    ] as const
  ) {
    const message = new RegExp(String.raw`pre_tokenizer\.pattern\.Regex: .* is not supported: .*${what}`);
    refused({ pre_tokenizer: { ...split, pattern: { Regex: regex } } }, message);
  }
  refused(
    { pre_tokenizer: { ...split, pattern: { String: " " }, behavior: "Merged" } },
    /pre_tokenizer\.behavior: expected Removed, /,
  );
  refused({ decoder: { type: "CTC" } }, /decoder\.type: expected ByteLevel, .* got "CTC"/);
  refused({ post_processor: { type: "Odd" } }, /post_processor\.type: expected TemplateProcessing, .* got "Odd"/);
  refused({ model: { ...model, dropout: 0.1 } }, /model\.dropout: 0\.1 is not supported: ids would be drawn at random/);
  refused({ model: { ...model, merges: ["a c"] } }, /model\.merges\[0\]: "c" is not in the vocabulary/);
  refused({ model: { ...model, merges: ["a b c"] } }, /model\.merges\[0\]: expected two tokens, got "a b c"/);
  refused(
    { model: { ...model, vocab: { a: 0, b: 0, ab: 1 } } },
    /model\.vocab: expected an id of its own for each token, got \{"b":0\}/,
  );
  refused({ model: { ...model, vocab: { a: -1 } } }, /model\.vocab\["a"\]: expected an id, got -1/);
  refused({ model: { type: "Unigram", vocab: [["a", 0]], unk_id: 1 } }, /model\.unk_id: expected below 1, got 1/);
  refused({ model: { type: "Unigram", vocab: [["a", "0"]] } }, /model\.vocab\[0\]: expected a token and its score/);
  refused({ model: { type: "WordLevel", vocab: {} } }, /model\.unk_token: expected a string, got null/);
  refused({ model: { vocab: {} } }, /model\.type: expected BPE, Unigram, WordLevel, WordPiece, got nothing/);
  const token = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  refused(
    { added_tokens: [{ ...token, id: 9, content: "x" }] },
    /added_tokens\[0\]\.id: expected 3, as Python's .* got 9/,
  );
  refused({ added_tokens: [{ ...token, id: 3, content: "x", stop: true }] }, /added_tokens\[0\]\.stop: this key/);
  refused(
    {
      normalizer: { type: "Strip", strip_left: true, strip_right: true },
      added_tokens: [{ ...token, id: 3, content: " ", normalized: true }],
    },
    /added_tokens: the normalizer makes nothing of the token " "/,
  );
  const first = { type: "Metaspace", replacement: "▁", prepend_scheme: "first", split: true };
  refused(
    { normalizer: { type: "Prepend", prepend: "x" }, pre_tokenizer: first },
    /pre_tokenizer\.type: .* 'first' cannot know the text's start/,
  );
});

test("Tokenizer.encode() refuses half of a surrogate pair, and text without ids where nothing is unknown", async () => {
  using directory = temporaryDirectory();
  directory.write("tokenizer.json", JSON.stringify(LETTERS));
  const tokenizer = await loadTokenizer(directory.path);
  assert.deepEqual(tokenizer.encode("abcb"), [2, 1]);
  assert.throws(() => tokenizer.encode("a\ud800b"), ArgumentError);
  const model = { type: "Unigram", vocab: [["a", -1]], unk_id: null, byte_fallback: false };
  const unigram = new TokenizerPipeline({ ...LETTERS, model }, "t.json");
  assert.deepEqual(unigram.encode("aa"), [0, 0]);
  assert.throws(() => unigram.encode("ab"), /t\.json has no id for "b", as its model has no unk_id/);
});

test("Tokenizer.encode() of a document without cuts gives the ids of its merges in order of rank", () => {
  // Words are cut where no merge reaches over: a long text must give what its merges give all at once.
  const { tokenizer = {} } = FIXTURES.kinds.find(({ name }) => name === "llama2-legacy") ?? {};
  const pipeline = new TokenizerPipeline(tokenizer, "tokenizer.json");
  const words = ["the", "fox", "aaaa", "dog.", "naïve", "  ", "\n", "日"];
  const text = Array.from({ length: 4000 }, (_, i) => words[(i * i + 3 * i) % words.length]).join(" ");
  const whole = pipeline.encode(text);
  assert.equal(pipeline.decode(whole, false), text);
  assert.ok(whole.length > 8000 && whole.length < text.length);
});

test("replaceMatches() finds no empty match where the last one ended, nor within a character", () => {
  assert.equal(replaceMatches("baab", /a*/gv, "#"), "#b#b#");
  assert.equal(replaceMatches("😀", /(?!x)/gv, "#"), "#😀#");
});

test("Tokenizer.encode() of a word of millions of characters gives its ids, or says what to do", async () => {
  using directory = temporaryDirectory();
  const { tokenizer } = FIXTURES.kinds.find(({ name }) => name === "gpt2") ?? {};
  directory.write("tokenizer.json", JSON.stringify(tokenizer));
  const loaded = await loadTokenizer(directory.path);
  try {
    assert.equal(loaded.decode(loaded.encode("a".repeat(5_000_000))).length, 5_000_000);
  } catch (error) {
    assert.ok(error instanceof ArgumentError, String(error));
    assert.match(error.message, /a word of millions of characters under this runtime: divide it/);
  }
});
