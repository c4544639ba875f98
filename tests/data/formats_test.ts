/** Data in formats that are not read: each is refused by its name where it is named, and skipped by it in a folder. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { openText } from "../../doors/data.ts";
import { ConfigError } from "../../doors/errors.ts";
import { describeSkipped } from "../../src/data/find_files.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const latin1 = (text: string): Uint8Array => Uint8Array.from(text, (char) => char.charCodeAt(0));
const utf16 = (text: string, isLittle: boolean): Uint8Array =>
  Uint8Array.from([...text].flatMap((char) => {
    const [low, high] = [char.charCodeAt(0) & 255, char.charCodeAt(0) >> 8];
    return isLittle ? [low, high] : [high, low];
  }));
const rows = Array.from({ length: 400 }, (_, id) => ({ id, text: `row ${id}: a, "b"\nand c` }));
const tar = latin1(`${"a.txt".padEnd(257, "\0")}ustar\0${"00".padEnd(249, "\0")}`);

/** Names and contents of files with the format that each is, and a part of what helps. */
const FILES: readonly (readonly [name: string, contents: string | Uint8Array, format: string, remedy: string])[] = [
  ["a.csv", "id,text\n1,hello\n", "CSV", 'load_dataset("csv", data_files="'],
  ["A.CSV", "hello\n", "CSV", "JSON lines"],
  ["a.tsv", "id\ttext\n1\thello\n", "TSV", 'sep="\\t")["train"]'],
  ["table.txt", 'label,"text"\r\n0,hello\r\n', "CSV", "JSON lines"],
  ["table", "text;label\nhello;0\n", "CSV", "JSON lines"],
  ["a.tab", "id\tbody\n1\thello\n", "TSV", "JSON lines"],
  ["a.csv.txt", "id;body\n1;hello\n", "CSV", "JSON lines"],
  ["spaced.txt", "\ufeffrow id, text\n1, hello\n", "CSV", "JSON lines"],
  ["bars.txt", "id|text\n1|hello\n", "CSV", "JSON lines"],
  ["index.txt", ",text\n0,hello\n", "CSV", "JSON lines"],
  ["returns.txt", "id,text\r1,hello\r", "CSV", "JSON lines"],
  ["quoted.txt", '"text","label"\n"hello\nyou",1\n', "CSV", "JSON lines"],
  ["a.json", JSON.stringify(rows.slice(0, 2)), "JSON array", 'load_dataset("json"'],
  ["pretty.json", JSON.stringify(rows, undefined, 2), "JSON array", ".to_json("],
  ["strings.json", '["one text", "another"]', "JSON array", "one object a line"],
  ["array.txt", `\ufeff\n ${JSON.stringify(rows)}`, "JSON array", "JSON lines"],
  ["array.jsonl", JSON.stringify(rows, undefined, 1), "JSON array", "JSON lines"],
  ["lists.json", JSON.stringify(rows.map(({ id, text }) => [id, text])), "JSON array", "JSON lines"],
  ["lines.json", rows.map((row) => JSON.stringify(row)).join("\n"), "JSON lines", "ends in .jsonl"],
  ["lines.txt", '{"text":"a"}\n{"text":"b"}\n', "JSON lines", "ends in .jsonl"],
  ["one.txt", '{"text":"a"}', "JSON lines", "ends in .jsonl"],
  ["object.json", JSON.stringify({ version: 1, data: rows }, undefined, 2), "JSON object", "JSON lines"],
  ["flat.json", JSON.stringify({ version: 1, data: rows }), "JSON object", "JSON lines"],
  ["a.ipynb", '{\n "cells": []\n}', "Jupyter notebook", "nbconvert"],
  ["a.txt.gz", gzipSync("hello"), "gzip", "gunzip -k "],
  ["renamed.txt", gzipSync("hello"), "gzip", "gunzip -k "],
  ["renamed.jsonl", gzipSync("hello"), "gzip", "gunzip -k "],
  ["a.zst", latin1("\x28\xb5\x2f\xfd\x04\0"), "zstd", "zstd -d "],
  ["skipped.zst", latin1("\x50\x2a\x4d\x18\x04\0\0\0"), "zstd", "zstd -d "],
  ["a.doc", latin1("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0"), "Microsoft Office", ".jsonl"],
  ["a.gguf", latin1("GGUF\x03\0\0\0"), "GGUF", ".jsonl"],
  ["a.bz2", latin1("BZh91AY&SY\0"), "bzip2", "bunzip2 -k "],
  ["a.xz", latin1("\xfd7zXZ\0\0"), "xz", "unxz -k "],
  ["a.lz4", latin1("\x04\x22\x4d\x18d"), "lz4", "lz4 -d "],
  ["a.zip", latin1("PK\x03\x04\x14\0"), "zip", "unzip "],
  ["a.7z", latin1("7z\xbc\xaf\x27\x1c\0"), "7z", "7z x "],
  ["a.tar", tar, "tar", "tar -xf "],
  ["a.parquet", latin1("PAR1\x15\x04\x15"), "Parquet", 'load_dataset("parquet"'],
  ["a.arrow", latin1("ARROW1\0\0"), "Arrow (IPC file, Feather)", 'load_dataset("arrow"'],
  ["stream.arrow", latin1("\xff\xff\xff\xff\x10\x01\0\0"), "Arrow (IPC stream)", 'load_dataset("arrow"'],
  ["a.orc", latin1("ORC\x08\x03\x10"), "ORC", ".jsonl"],
  ["a.npy", latin1("\x93NUMPY\x01\0"), "NumPy", ".jsonl"],
  ["a.pkl", latin1("\x80\x04\x95\x0b"), "pickle", ".jsonl"],
  ["a.pdf", latin1("%PDF-1.7\n"), "PDF", "pdftotext "],
  ["a.db", latin1("SQLite format 3\0"), "SQLite", ".jsonl"],
  [
    "pointer.txt",
    "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "Git LFS pointer",
    "git lfs pull",
  ],
  ["le.txt", Uint8Array.of(0xff, 0xfe, ...utf16("hello", true)), "UTF-16", "iconv -f UTF-16 "],
  ["be.jsonl", Uint8Array.of(0xfe, 0xff, ...utf16('{"text":1}', false)), "UTF-16", "iconv -f UTF-16 "],
  ["nomark.txt", utf16("hello, all of you", true), "UTF-16", "iconv -f UTF-16LE "],
  ["nomark-be.txt", utf16("hello, all of you", false), "UTF-16", "iconv -f UTF-16BE "],
  ["cyrillic.txt", utf16("Привет, мир, это просто текст.\n", true), "UTF-16", "iconv -f UTF-16LE "],
  ["cyrillic-be.txt", utf16("Привет, мир, это просто текст.\n", false), "UTF-16", "iconv -f UTF-16BE "],
  ["arabic.txt", utf16("مرحبا بالعالم هذا نص", true), "UTF-16", "iconv -f UTF-16LE "],
  ["utf32.txt", latin1([..."hello, you"].map((char) => `${char}\0\0\0`).join("")), "UTF-32", "iconv -f UTF-32LE "],
  ["utf32-be.txt", latin1([..."hello, you"].map((char) => `\0\0\0${char}`).join("")), "UTF-32", "UTF-32BE "],
  ["hindi.txt", utf16("नमस्ते दुनिया यह पाठ है", true), "binary data", ".jsonl"],
  ["weights.txt", latin1(`\x40${"\0".repeat(7)}{"a":{"dtype":"F32","shape":[1]}}`), "binary data", ".jsonl"],
  ["wide.txt", Uint8Array.of(0xff, 0xfe, 0, 0, 104, 0, 0, 0), "UTF-32", "iconv -f UTF-32 "],
];

/** Files of text that begin like one of these formats. */
const TEXTS: readonly (readonly [name: string, contents: string])[] = [
  ["brackets.md", "[link](https://example.org), and more\n"],
  ["category.txt", "[[Category:Things]]\ntext\n"],
  ["note.txt", "[1] first\n[2] second\n"],
  ["code.js", "{\n  let a = 1;\n}\n"],
  ["template.txt", "{name}, hello\n{name}, bye\n"],
  ["commas.txt", "text, they said, is text,\nand so it is, in all\n"],
  ["column.txt", "1\t2\t3\t4\t5\t6\t7\t8\t9\n"],
  ["colors.txt", "\x1b[1mbold\x1b[0m and \x1b[31mred\x1b[0m\n"],
  ["zipper.txt", "PKs and BZh and ORCs and PAR1 and Obj\n"],
  ["parquet.txt", "PAR1 is how such files begin\n"],
  ["orc.txt", "ORCs live thére\n"],
  ["accents.txt", "PAR1é is no table\n"],
  ["a.unknown", "\u0080\u0004"],
  ["bz.txt", "BZh9 is no word\n"],
  ["pdf.txt", "%PDF- is a mark\n"],
  ["gif.txt", "GIF8 is none\n"],
  ["config.yaml", 'text: "a"\nother: b\n'],
  ["package", '{\n  "name": "a",\n  "text": "b"\n}\n'],
  ["empty.txt", ""],
  ["short.txt", "a"],
  ["marked.txt", "\ufeffa"],
];

for (const [name, contents, format, remedy] of FILES) {
  test(`openText() refuses ${name} as ${format}`, () => {
    using folder = temporaryDirectory();
    const file = folder.write(name, contents);
    assert.throws(() => openText([file]), (error) => {
      assert.ok(error instanceof ConfigError, String(error));
      const [problem] = error.problems;
      assert.equal(problem?.where, file);
      assert.ok(problem?.got.startsWith(`${format}; `), problem?.got);
      assert.ok(problem?.got.includes(remedy), problem?.got);
      return true;
    });
    // In a folder and under a pattern it is left out, and said.
    const text = folder.write("z.txt", "text");
    for (const input of [folder.path, `${folder.path}/*`]) {
      const source = openText([input]);
      assert.deepEqual(source.files, [text]);
      const said = source.skipped === undefined ? undefined : describeSkipped(source.skipped);
      assert.equal(said, `1 ${format} file (${name})`);
    }
  });
}

test("openText() takes text that begins like another format", () => {
  using folder = temporaryDirectory();
  const files = TEXTS.map(([name, contents]) => folder.write(name, contents)).sort();
  assert.deepEqual(openText([folder.path]).files, files);
  assert.deepEqual(openText(files).files, files);
});

test("openText() names all files of such formats at once, under the key that they were given by", () => {
  using folder = temporaryDirectory();
  const files = [folder.write("a.csv", "a"), folder.write("b.gz", gzipSync("b")), folder.write("c.txt", "c")];
  assert.throws(() => openText(files, { name: "evalData", field: "body" }), (error) => {
    assert.ok(error instanceof ConfigError);
    assert.deepEqual(error.problems.map(({ path, where }) => [path, where]), [["evalData", files[0]], [
      "evalData",
      files[1],
    ]]);
    return true;
  });
  // Nothing is left of a folder: what was skipped is named.
  assert.throws(() => openText([`${folder.path}/*.csv`]), /got '.*\*\.csv' \(skipped 1 CSV file \(a\.csv\)\)$/);
});
