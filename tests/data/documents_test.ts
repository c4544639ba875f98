/**
 * Text and JSONL files: which are found, in which order, and what bad ones get.
 *
 * @module
 */
import assert from "node:assert/strict";
import { symlinkSync } from "node:fs";
import { test } from "node:test";
import type { TextDocument, TextSource } from "../../src/data/documents.ts";
import { openText } from "../../src/data/documents.ts";
import { findFiles } from "../../src/data/find_files.ts";
import { ConfigError, FileError } from "../../src/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";

async function all(source: TextSource): Promise<TextDocument[]> {
  const documents: TextDocument[] = [];
  for await (const document of source.documents()) documents.push(document);
  return documents;
}

async function refusal(source: TextSource): Promise<ConfigError> {
  try {
    await all(source);
  } catch (error) {
    assert.ok(error instanceof ConfigError, String(error));
    return error;
  }
  throw new assert.AssertionError({ message: "the documents were taken" });
}

test("findFiles() takes files, directories and patterns, sorted, each once", () => {
  using directory = temporaryDirectory();
  const make = (name: string): string => directory.write(name, name);
  const [b, a, deep, hidden, star] = ["b.txt", "a.md", "sub/deep/c.txt", ".hidden/d.txt", "sub/x*y.txt"].map(make);
  symlinkSync(directory.file("sub"), directory.file("sub/deep/loop"));
  const find = (
    ...patterns: string[]
  ): string[] => [...findFiles(patterns.map((pattern) => `${directory.path}/${pattern}`)).files];
  assert.deepEqual(find(""), [a, b, deep, star]);
  assert.deepEqual(find("b.txt", "*", "a.md"), [a, b]);
  assert.deepEqual(find("**/*.txt"), [b, deep, star]);
  assert.deepEqual(find("?.txt"), [b]);
  assert.deepEqual(find("s*b/**/c.txt"), [deep]);
  assert.deepEqual(find("sub/**"), [deep, star]);
  assert.deepEqual(find("sub/x*y.txt"), [star]);
  assert.deepEqual(find(".hid*/*"), [hidden]);
});

test("findFiles() leaves out of folders what is no text, hidden or a package's, and says what", () => {
  using directory = temporaryDirectory();
  const text = directory.write("a.txt", "é".repeat(5000)); // longer than what is looked at, and cut inside a character
  const [png, zeros] = [directory.write("b.png", Uint8Array.of(0x89, 0x50)), directory.write("sub/c.bin", "a\0")];
  const packaged = directory.write("node_modules/x/d.txt", "d");
  directory.write(".git/HEAD", "ref");
  directory.write("empty.txt", "");
  const { files, skipped } = findFiles([directory.path]);
  assert.deepEqual(files, [text, directory.file("empty.txt")]);
  assert.deepEqual([...skipped.binary].sort(), [png, zeros]);
  assert.deepEqual([...skipped.packages], [directory.file("node_modules")]);
  assert.deepEqual([...skipped.hidden], [directory.file(".git")]);
  // A named file is taken, or refused with the reason where it is read.
  assert.deepEqual(findFiles([png, `${directory.path}/node_modules/**/*.txt`]).files, [png, packaged]);
  assert.throws(
    () => findFiles([directory.file("sub")]),
    /got .*sub' \(skipped 1 file without UTF-8 text \(c\.bin\)\)$/,
  );
});

test("findFiles() names every input that matches nothing", () => {
  using directory = temporaryDirectory();
  const file = directory.write("a.txt", "a");
  assert.throws(() => findFiles([file, "/nowhere/a.txt", `${directory.path}/*.md`, `${file}/b`]), (error) => {
    assert.ok(error instanceof ConfigError);
    assert.deepEqual(error.problems.map(({ got }) => got), [
      "'/nowhere/a.txt'",
      `'${directory.path}/*.md'`,
      `'${file}/b'`,
    ]);
    return true;
  });
  assert.throws(() => findFiles([]), ConfigError);
  assert.throws(() => findFiles([""]), ConfigError);
});

test("openText() gives whole files and JSONL lines in order", async () => {
  using directory = temporaryDirectory();
  directory.write("b.txt", "second ünïcode\r\n");
  directory.write("a.md", "\ufefffirst");
  directory.write("c.jsonl", '{"text":"x\\ny","id":1}\n\n  \n{"text":""}\r\n{"id":2,"text":"\\ud83d\\ude00"}');
  directory.write("empty.txt", "");
  const source = openText([directory.path]);
  const documents = await all(source);
  assert.deepEqual(documents.map(({ text, file, line }) => [text, file.slice(directory.path.length + 1), line]), [
    ["first", "a.md", undefined],
    ["second ünïcode\r\n", "b.txt", undefined],
    ["x\ny", "c.jsonl", 1],
    ["😀", "c.jsonl", 5],
  ]);
  assert.equal(documents.at(-1)?.bytesRead, source.byteLength);
  assert.deepEqual(await all(source), documents, "a source can be read again");
});

test("openText() reads JSONL lines across the pieces in which it reads", async () => {
  using directory = temporaryDirectory();
  const texts = Array.from({ length: 9 }, (_, i) => "é".repeat(400_000 + i * 50_000) + i);
  texts.push("z".repeat(9_000_000), "end");
  const file = directory.write("a.ndjson", texts.map((body) => JSON.stringify({ body })).join("\n") + "\n");
  const documents = await all(openText([file], { field: "body" }));
  assert.equal(documents.length, texts.length);
  for (const [i, { text, line }] of documents.entries()) {
    assert.ok(text === texts[i]);
    assert.equal(line, i + 1);
  }
});

for (
  const [what, line, message] of [
    ["JSON that ends early", '{"text":"a"', /expected one JSON object a line, got /],
    ["an array", '["a"]', /expected one JSON object a line, got \["a"\]/],
    ["null", "null", /expected one JSON object a line, got null/],
    [
      "another key",
      '{"content":"a","id":1}',
      /expected a string under "text", got an object with the keys "content", "id"/,
    ],
    ["an inherited key", '{"__proto__":{"text":"a"}}', /expected a string under "text", got an object with the keys/],
    ["a number", '{"text":5}', /expected a string under "text", got 5/],
  ] as const
) {
  test(`openText() names file and line of ${what}`, async () => {
    using directory = temporaryDirectory();
    const file = directory.write("a.jsonl", `{"text":"good"}\n\n${line}\n{"text":"good"}\n`);
    const error = await refusal(openText([file]));
    assert.match(error.message, message);
    assert.equal(error.problems[0]?.where, `${file}:3`);
  });
}

test("openText() names the byte that is not UTF-8", async () => {
  using directory = temporaryDirectory();
  const bytes = (...parts: (string | number)[]): Uint8Array =>
    Uint8Array.from(parts.flatMap((part) => typeof part === "number" ? [part] : [...new TextEncoder().encode(part)]));
  const file = directory.write("a.txt", bytes("héllo", 0xff, "more text"));
  let error = await refusal(openText([file]));
  assert.match(error.message, /expected UTF-8 text, got byte 0xff at byte 6/);
  assert.equal(error.problems[0]?.where, file);
  directory.write("a.txt", bytes("ab", 0xc3));
  error = await refusal(openText([file]));
  assert.match(error.message, /the end inside a character at byte 3/);
  const lines = directory.write("b.jsonl", bytes('{"text":"a"}\n{"text":"', 0xed, 0xa0, 0x80, '"}\n'));
  error = await refusal(openText([lines]));
  assert.equal(error.problems[0]?.where, `${lines}:2`);
  assert.match(error.message, /byte 0xa0 at byte 10/);
});

test("TextSource.fingerprint() follows contents, boundaries and meaning, not places", () => {
  using directory = temporaryDirectory();
  const print = (folder: string, files: Readonly<Record<string, string>>, field?: string): string => {
    for (const [name, text] of Object.entries(files)) directory.write(`${folder}/${name}`, text);
    return openText([directory.file(folder)], field === undefined ? {} : { field }).fingerprint();
  };
  const first = print("1", { "a.txt": "ab", "b.txt": "c" });
  assert.match(first, /^[0-9a-f]{64}$/);
  assert.equal(print("2", { "x.md": "ab", "y.ts": "c" }), first);
  const others = [
    print("3", { "a.txt": "a", "b.txt": "bc" }),
    print("4", { "a.txt": "abc" }),
    print("5", { "a.txt": "c", "b.txt": "ab" }),
    print("6", { "a.jsonl": "ab", "b.txt": "c" }),
    print("6", {}, "body"),
  ];
  assert.equal(new Set([first, ...others]).size, 6);
});

test("TextSource.documents() reports a file that has gone", async () => {
  const source = (() => {
    using inner = temporaryDirectory();
    return openText([inner.write("a.txt", "a")]);
  })();
  await assert.rejects(all(source), FileError);
  assert.throws(() => source.fingerprint(), FileError);
});
