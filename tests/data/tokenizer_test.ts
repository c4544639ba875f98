/**
 * The committed tokenizer against Python's on goldens, and what bad tokenizer files get.
 *
 * @module
 */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { typescriptLib } from "../../examples/typescript_lib.ts";
import { findFiles } from "../../src/data/find_files.ts";
import { loadTokenizer } from "../../src/data/tokenizer.ts";
import { ArgumentError, CheckpointError, FileError } from "../../src/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const DATA = fileURLToPath(new URL("../../examples/data", import.meta.url));
const GOLDENS = z.object({
  texts: z.array(z.object({ text: z.string(), ids: z.array(z.number()) })),
  files: z.array(z.object({ name: z.string(), tokens: z.number(), sha256: z.string() })),
}).parse(JSON.parse(readFileSync(new URL("../fixtures/tokenizer/encodings.json", import.meta.url), "utf8")));

test("loadTokenizer() reads the committed tokenizer", async () => {
  const tokenizer = await loadTokenizer(DATA);
  assert.equal(tokenizer.vocabSize, 4096);
  assert.equal(tokenizer.eosId, 0);
  assert.equal(tokenizer.path, `${DATA}/tokenizer.json`);
  assert.match(tokenizer.fingerprint, /^[0-9a-f]{64}$/);
  const same = await loadTokenizer(`${DATA}/tokenizer.json`);
  assert.equal(same.fingerprint, tokenizer.fingerprint);
  assert.equal(same.eosId, 0);
});

test("Tokenizer.encode() and decode() agree with Python's on awkward texts", async () => {
  const tokenizer = await loadTokenizer(DATA);
  assert.ok(GOLDENS.texts.length >= 20);
  for (const { text, ids } of GOLDENS.texts) {
    assert.deepEqual(tokenizer.encode(text), ids, JSON.stringify(text));
    assert.equal(tokenizer.decode(ids), text);
  }
});

test("Tokenizer.encode() agrees with Python's on TypeScript's declarations", async () => {
  const tokenizer = await loadTokenizer(DATA);
  const { files } = findFiles([typescriptLib()]);
  assert.equal(files.length, 108);
  for (const { name, tokens, sha256 } of GOLDENS.files) {
    const file = files.find((path) => path.endsWith(`/${name}`)) ?? "";
    const text = readFileSync(file, "utf8");
    const ids = Int32Array.from(tokenizer.encode(text));
    assert.equal(ids.length, tokens, name);
    assert.equal(createHash("sha256").update(new Uint8Array(ids.buffer)).digest("hex"), sha256, name);
    assert.ok(tokenizer.decode(ids) === text, name);
  }
});

test("Tokenizer.decode() leaves out special tokens when asked, and refuses ids out of range", async () => {
  const tokenizer = await loadTokenizer(DATA);
  const ids = [...tokenizer.encode("a"), 0, ...tokenizer.encode("b")];
  assert.equal(tokenizer.decode(ids), "a<|endoftext|>b");
  assert.equal(tokenizer.decode(ids, { skipSpecial: true }), "ab");
  assert.equal(tokenizer.decode([]), "");
  for (const bad of [-1, 4096, 1.5, NaN]) assert.throws(() => tokenizer.decode([1, bad]), ArgumentError);
});

/** The least tokenizer: words of one letter. */
const TINY = {
  added_tokens: [],
  normalizer: null,
  pre_tokenizer: null,
  post_processor: null,
  decoder: null,
  model: { type: "BPE", vocab: { a: 0, b: 1, "</s>": 5 }, merges: [] },
};

test("loadTokenizer() finds the end-of-text token, if one is named", async () => {
  using directory = temporaryDirectory();
  directory.write("tokenizer.json", JSON.stringify(TINY));
  const plain = await loadTokenizer(directory.path);
  assert.equal(plain.eosId, undefined);
  assert.equal(plain.vocabSize, 6);
  for (const eos_token of ["</s>", { content: "</s>", special: true }]) {
    directory.write("tokenizer_config.json", JSON.stringify({ eos_token }));
    const named = await loadTokenizer(directory.path);
    assert.equal(named.eosId, 5);
    assert.notEqual(named.fingerprint, plain.fingerprint);
  }
  for (
    const [eos_token, message] of [["<eos>", /must be in the vocabulary of .* got "<eos>"/], [
      3,
      /must be a string/,
    ]] as const
  ) {
    directory.write("tokenizer_config.json", JSON.stringify({ eos_token }));
    await assert.rejects(loadTokenizer(directory.path), (error) => {
      assert.ok(error instanceof CheckpointError);
      assert.equal(error.file, directory.file("tokenizer_config.json"));
      assert.match(error.message, message);
      return true;
    });
  }
});

test("Tokenizer.encode() refuses a token without id", async () => {
  using directory = temporaryDirectory();
  directory.write("tokenizer.json", JSON.stringify({ ...TINY, model: { ...TINY.model, unk_token: "<unk>" } }));
  const tokenizer = await loadTokenizer(directory.path);
  assert.deepEqual(tokenizer.encode("abba"), [0, 1, 1, 0]);
  assert.throws(() => tokenizer.encode("abc"), (error) => {
    assert.ok(error instanceof ArgumentError);
    assert.match(error.message, /has no id for "c", as its unk_token "<unk>" is not in its vocabulary/);
    return true;
  });
});

test("loadTokenizer() refuses what is no tokenizer", async () => {
  using directory = temporaryDirectory();
  await assert.rejects(loadTokenizer(directory.path), FileError);
  const refused = async (text: string, message: RegExp): Promise<void> => {
    const file = directory.write("tokenizer.json", text);
    await assert.rejects(loadTokenizer(directory.path), (error) => {
      assert.ok(error instanceof CheckpointError, String(error));
      assert.equal(error.file, file);
      assert.match(error.message, message);
      return true;
    });
  };
  await refused("{", /The file must be JSON: /);
  await refused("[]", /The file must be a JSON object, got \[\]/);
  await refused('{"model": {"type": "BPE", "type": "Unigram"}}', /The file must have each key once, got "type" twice/);
  await refused("{}", /model: expected an object, got nothing/);
  const message = /model\.type: expected BPE, Unigram, WordLevel, WordPiece, got "Telepathy"/;
  await refused(JSON.stringify({ ...TINY, model: { type: "Telepathy" } }), message);
  await refused(JSON.stringify({ ...TINY, model: null }), /model: expected an object, got null/);
});
