/**
 * Packed tokens and their cache file.
 *
 * @module
 */
import assert from "node:assert/strict";
import { appendFileSync, mkdirSync, readdirSync, readFileSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { openText } from "../../src/data/documents.ts";
import type { PackingProgress, TokenCache, TokenStream } from "../../src/data/token_stream.ts";
import { packInMemory, tokenCache, tokensInMemory } from "../../src/data/token_stream.ts";
import type { Tokenizer } from "../../src/data/tokenizer.ts";
import { ArgumentError, CheckpointError, ConfigError, FileError } from "../../src/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";

/** A token a UTF-16 code unit; 1 ends a text. */
function codeUnits(vocabSize: number, facts: Partial<Tokenizer> = {}): Tokenizer {
  return {
    path: "units/tokenizer.json",
    files: [],
    vocabSize,
    eosId: 1,
    fingerprint: `units ${vocabSize}`,
    encode: (text) => Array.from({ length: text.length }, (_, i) => text.charCodeAt(i)),
    decode: (ids) => String.fromCharCode(...ids),
    ...facts,
  };
}

async function contents(stream: TokenStream): Promise<number[]> {
  const tokens = new Int32Array(stream.length);
  await stream.read(0, tokens);
  return [...tokens];
}

for (const vocabSize of [65536, 65537]) {
  test(`tokenCache() packs documents, each with an end, for a vocabulary of ${vocabSize}`, async () => {
    using directory = temporaryDirectory();
    directory.write("text/a.txt", "AB\uffff");
    directory.write("text/b.jsonl", '{"text":"C"}\n{"text":"DE"}\n');
    const cache = tokenCache(openText([directory.file("text")]), codeUnits(vocabSize), directory.file("cache/tokens"));
    assert.equal(cache.exists(), false);
    assert.throws(() => cache.open(), FileError);
    const told: PackingProgress[] = [];
    await cache.build((progress) => void told.push(progress));
    assert.equal(cache.exists(), true);
    assert.deepEqual(readdirSync(directory.file("cache/tokens")).length, 1);
    assert.deepEqual(told.map(({ documents, tokens }) => [documents, tokens]), [[1, 4], [2, 6], [3, 9]]);
    assert.deepEqual(told.map(({ bytesRead, byteLength }) => [bytesRead, byteLength]), [[5, 32], [18, 32], [32, 32]]);

    const stream = cache.open();
    assert.equal(stream.fingerprint, cache.fingerprint);
    assert.deepEqual(await contents(stream), [65, 66, 0xffff, 1, 67, 1, 68, 69, 1]);
    const middle = new Int32Array(3);
    await stream.read(2, middle);
    assert.deepEqual([...middle], [0xffff, 1, 67]);
    await assert.rejects(stream.read(7, middle), ArgumentError);
    await assert.rejects(stream.read(-1, middle), ArgumentError);
    stream.close();
    await assert.rejects(stream.read(0, middle));
  });
}

test("tokenCache() packs more tokens than it gathers at once", async () => {
  using directory = temporaryDirectory();
  const text = Array.from({ length: 600_001 }, (_, i) => String.fromCharCode(32 + i % 90)).join("");
  const cache = tokenCache(openText([directory.write("a.txt", text)]), codeUnits(128), directory.path);
  await cache.build();
  const stream = cache.open();
  const tokens = await contents(stream);
  stream.close();
  assert.equal(tokens.length, 600_002);
  assert.ok(tokens.every((id, i) => id === (i === 600_001 ? 1 : 32 + i % 90)));
});

test("tokenCache() is named by text and tokenizer", () => {
  using directory = temporaryDirectory();
  const print = (text: string, tokenizer: Tokenizer): string =>
    tokenCache(openText([directory.write("a.txt", text)]), tokenizer, directory.path).fingerprint;
  const first = print("a", codeUnits(128));
  assert.equal(print("a", codeUnits(128)), first);
  const others = [
    print("b", codeUnits(128)),
    print("a", codeUnits(129)),
    print("a", codeUnits(128, { eosId: 2 })),
  ];
  assert.equal(new Set([first, ...others]).size, 4);
});

test("tokenCache() reads a text once, until it is changed", async () => {
  using directory = temporaryDirectory();
  const names = Array.from({ length: 5 }, (_, i) => `text/${i}.txt`);
  for (const name of names) directory.write(name, `${name} ${"words ".repeat(10_000)}`);
  const cacheFolder = directory.file("cache");
  let reads = 0;
  const cacheNow = (field = "text"): TokenCache => {
    const source = openText([directory.file("text")], { field });
    const counted = { ...source, fingerprint: () => (reads++, source.fingerprint()) };
    return tokenCache(counted, codeUnits(256), cacheFolder);
  };
  const readsOf = (field?: string): number => {
    const before = reads;
    cacheNow(field);
    return reads - before;
  };
  // Changed a moment ago: what is written within the grain of a file's time would not be seen.
  await cacheNow().build();
  assert.deepEqual([reads, readsOf()], [1, 1]);
  await new Promise((resolve) => setTimeout(resolve, 3000));
  const first = cacheNow();
  assert.ok(first.exists());
  assert.deepEqual([readsOf(), readsOf()], [0, 0]);
  assert.equal(cacheNow().fingerprint, first.fingerprint);
  assert.equal(readsOf("body"), 1, "another key makes another text");

  // One byte is another, the size and the time of modification are not: the time of change is.
  const changed = directory.file("text/3.txt");
  const { atime, mtime } = statSync(changed);
  const bytes = readFileSync(changed);
  bytes[30_000] = 88;
  writeFileSync(changed, bytes);
  utimesSync(changed, atime, mtime);
  const before = reads;
  assert.notEqual(cacheNow().fingerprint, first.fingerprint);
  assert.equal(reads - before, 1);
  // A copy of equal contents is the same text, wherever it lies, and is read once.
  bytes[30_000] = "words ".charCodeAt((30_000 - "text/3.txt ".length) % 6);
  writeFileSync(changed, bytes);
  assert.equal(cacheNow().fingerprint, first.fingerprint);
  assert.ok(readdirSync(cacheFolder).every((name) => /^(tokens-\w+\.bin|text-\w+\.json)$/.test(name)));
  // A file of the cache that is damaged is made anew.
  for (const name of readdirSync(cacheFolder)) if (name.endsWith(".json")) writeFileSync(`${cacheFolder}/${name}`, "{");
  assert.equal(cacheNow().fingerprint, first.fingerprint);
});

test("TokenCache.build() refuses a text that is changed meanwhile", async () => {
  using directory = temporaryDirectory();
  const file = directory.write("a.jsonl", '{"text":"one"}\n'.repeat(10));
  const cache = tokenCache(openText([file]), codeUnits(256), directory.file("cache"));
  const build = cache.build(({ documents }) => {
    if (documents === 5) appendFileSync(file, '{"text":"two"}\n');
  });
  await assert.rejects(build, (error) => {
    return error instanceof CheckpointError &&
      /The text was changed while it was tokenized: start again/.test(error.message);
  });
  assert.deepEqual(readdirSync(directory.file("cache")), []);
});

test("TokenCache.build() leaves nothing behind when it fails", async () => {
  using directory = temporaryDirectory();
  directory.write("text/a.txt", "a");
  directory.write("text/b.jsonl", "{}");
  mkdirSync(directory.file("cache"));
  const cache = tokenCache(openText([directory.file("text")]), codeUnits(128), directory.file("cache"));
  await assert.rejects(cache.build(), ConfigError);
  assert.deepEqual(readdirSync(directory.file("cache")), []);
  const empty = tokenCache(openText([directory.write("empty.txt", "")]), codeUnits(128), directory.file("cache"));
  await assert.rejects(empty.build(), /There is no text in/);
  assert.deepEqual(readdirSync(directory.file("cache")), []);
  const blocked = tokenCache(openText([directory.file("text/a.txt")]), codeUnits(128), directory.file("text/a.txt/x"));
  await assert.rejects(blocked.build(), FileError);
});

test("TokenCache.open() refuses a damaged file", async () => {
  using directory = temporaryDirectory();
  const cache = tokenCache(openText([directory.write("a.txt", "abc")]), codeUnits(128), directory.path);
  await cache.build();
  const bytes = readFileSync(cache.path);
  const damaged = (change: (copy: Uint8Array) => Uint8Array): void => {
    writeFileSync(cache.path, change(Uint8Array.from(bytes)));
    assert.throws(() => cache.open(), (error) => error instanceof CheckpointError && error.file === cache.path);
  };
  damaged((copy) => copy.subarray(0, 0));
  damaged((copy) => copy.subarray(0, 20));
  damaged((copy) => copy.subarray(2));
  damaged((copy) => copy.subarray(0, copy.length - 1));
  damaged((copy) => copy.fill(0, copy.length - 32));
  damaged((copy) => copy.fill(3, copy.length - 20, copy.length - 19));
  damaged((copy) => copy.fill(9, copy.length - 16, copy.length - 15));
});

test("tokenCache() needs an end-of-text token", () => {
  using directory = temporaryDirectory();
  const source = openText([directory.write("a.txt", "abc")]);
  assert.throws(
    () => tokenCache(source, codeUnits(128, { eosId: undefined }), directory.path),
    (error) => error instanceof CheckpointError && /eos_token in tokenizer_config\.json/.test(error.message),
  );
});

test("tokensInMemory() reads its array", async () => {
  const stream = tokensInMemory(Int32Array.of(5, 6, 7), "x");
  assert.deepEqual(await contents(stream), [5, 6, 7]);
  assert.throws(() => stream.read(2, new Int32Array(2)), ArgumentError);
});

test("packing refuses ids that the tokenizer's vocabulary does not have, and keeps no file", async () => {
  using directory = temporaryDirectory();
  directory.write("text/a.txt", "AB");
  const source = openText([directory.file("text")]);
  for (const wrong of [257, 65536 + 65, -1, 1.5, NaN, 2 ** 32]) {
    const tokenizer = codeUnits(257, { encode: () => [65, wrong], fingerprint: `wrong ${wrong}` });
    const refusal = { name: "ArgumentError", message: new RegExp(`Cannot pack id ${wrong} .*from 0 to 256`) };
    const cache = tokenCache(source, tokenizer, directory.file("cache/tokens"));
    await assert.rejects(cache.build(), refusal);
    assert.equal(cache.exists(), false);
    await assert.rejects(packInMemory(source, tokenizer), refusal);
  }
});
