/** Texts of a folder that holds all formats: what is read, what is skipped, and what is refused. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync, zstdCompressSync } from "node:zlib";
import { describeSkipped } from "../../../src/data/find_files.ts";
import { openDocuments } from "../../../src/data/rows/open_documents.ts";
import { readBytes } from "../../../src/runtime/files.ts";
import { fixturePath } from "../../support/golden.ts";
import { temporaryDirectory } from "../../support/temporary.ts";

async function textsOf(inputs: readonly string[], textField = "text"): Promise<string[]> {
  const texts: string[] = [];
  for await (const { text } of (await openDocuments(inputs, { textField, name: "data" })).documents()) texts.push(text);
  return texts;
}

const line = (text: string): string => `${JSON.stringify({ text })}\n`;

test("openDocuments() reads tables, lines and plain files of a folder, packed or not, and skips tables without the column", async () => {
  using folder = temporaryDirectory();
  folder.write("a.txt", "plain");
  folder.write("b.csv", 'id,text\n1,"one, two"\n2,three\n');
  folder.write("c.jsonl", line("line"));
  folder.write("d.jsonl.gz", gzipSync(line("gzip")));
  folder.write("e.jsonl.zst", zstdCompressSync(line("zstd")));
  folder.write("f.json", JSON.stringify([{ text: "array" }]));
  folder.write("g.parquet", await readBytes(fixturePath("parquet/texts.parquet")));
  folder.write("h.md.zst", zstdCompressSync("packed"));
  folder.write("i.csv", "id,body\n1,no\n");
  folder.write("j.parquet", await readBytes(fixturePath("parquet/columns.parquet")));
  folder.write("k.tar.gz", gzipSync("no"));
  const texts = await textsOf([folder.path]);
  assert.deepEqual(texts.slice(0, 7), ["plain", "one, two", "three", "line", "gzip", "zstd", "array"]);
  assert.equal(texts.length, 7 + 30 + 1);
  assert.equal(texts.at(-1), "packed");
  const { skipped } = await openDocuments([folder.path], { textField: "text", name: "data" });
  assert.equal(
    skipped && describeSkipped(skipped),
    '1 gzip file (k.tar.gz), 1 CSV without "text" file (i.csv), 1 Parquet without "text" file (j.parquet)',
  );
  assert.deepEqual(await textsOf([`${folder.path}/*.csv`], "body"), ["no"]);
});

test("openDocuments() refuses a named table without the column by its row, and a folder of nothing else", async () => {
  using folder = temporaryDirectory();
  const file = folder.write("columns.parquet", await readBytes(fixturePath("parquet/columns.parquet")));
  await assert.rejects(textsOf([file]), {
    message: /columns\.parquet:1: data: expected one of the columns "text", got "id", "body": name the column of texts/,
  });
  assert.deepEqual(await textsOf([file], "body"), ["a", "b"]);
  await assert.rejects(textsOf([folder.path]), {
    message:
      /data: expected text, or rows with a text under "text", got 1 Parquet without "text" file .*: name the column/,
  });
});

test("openDocuments() gives the fingerprint of contents, which changes with the column", async () => {
  using folder = temporaryDirectory();
  const file = folder.write("a.csv", "text,body\nx,y\n");
  const print = async (textField: string): Promise<string> =>
    (await openDocuments([file], { textField, name: "data" })).fingerprint();
  assert.equal(await print("text"), await print("text"));
  assert.notEqual(await print("text"), await print("body"));
});
