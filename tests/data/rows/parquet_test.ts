/** Rows of Parquet files of pyarrow: all codecs, page versions and types, and what is said of files that are broken. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FileError } from "../../../src/errors.ts";
import { parquetRows } from "../../../src/data/rows/parquet.ts";
import { MAX_ROW_BYTES } from "../../../src/data/rows/row.ts";
import { readBytes, readTextSync } from "../../../src/runtime/files.ts";
import { fixturePath } from "../../support/golden.ts";
import { startRank } from "../../support/rank_process.ts";
import { longTest } from "../../support/share.ts";
import { temporaryDirectory } from "../../support/temporary.ts";

const fixture = (name: string): string => fixturePath(`parquet/${name}`);
const linesOf = (name: string): unknown[] =>
  readTextSync(fixture(name)).trimEnd().split("\n").map((line) => JSON.parse(line));

async function read(file: string, columns?: readonly string[]): Promise<readonly [line: number, value: unknown][]> {
  const rows: [number, unknown][] = [];
  for await (const row of parquetRows(file, columns)) {
    rows.push([row.line, "value" in row ? row.value : `${row.problem.expected} | ${row.problem.got}`]);
  }
  return rows;
}

for (const name of ["none", "snappy", "gzip", "brotli", "lz4", "zstd", "v2"]) {
  test(`parquetRows() reads structures, lists and numbers of chats-${name}.parquet`, async () => {
    const rows = await read(fixture(`chats-${name}.parquet`));
    assert.deepEqual(rows.map(([, value]) => value), linesOf("chats.jsonl"));
    assert.deepEqual(rows.map(([line]) => line), Array.from(rows, (_, i) => i + 1));
  });
}

test("parquetRows() reads no other columns than those that are asked for", async () => {
  using folder = temporaryDirectory();
  const bytes = await readBytes(fixture("chats-none.parquet"));
  // The pages of the column 'junk' are the only ones with a row of x.
  const at = new TextDecoder("latin1").decode(bytes).indexOf("x".repeat(50));
  assert.ok(at > 0);
  bytes.fill(0xff, at - 24, at + 50);
  const file = folder.write("damaged.parquet", bytes);
  await assert.rejects(read(file), FileError);
  const rows = await read(file, ["messages", "absent"]);
  assert.deepEqual(
    rows.map(([, value]) => value),
    linesOf("chats.jsonl").map((row) => {
      assert.ok(typeof row === "object" && row !== null && "messages" in row);
      return { messages: row.messages };
    }),
  );
});

test("parquetRows() names the columns that are there where none is one that is read", async () => {
  const [row, ...others] = await read(fixture("columns.parquet"), ["messages", "text"]);
  assert.deepEqual(others, []);
  assert.match(
    String(row),
    /^1,one of the columns "messages", "text" \| "id", "body": name the column of texts \('--text-field'\)/,
  );
  assert.match(String(row), /chats are under "messages" or "conversations"/);
});

test("parquetRows() gives bad cells by their row, and the rows behind them", async () => {
  const latin1 = await read(fixture("latin1.parquet"));
  assert.deepEqual([latin1[0], latin1[2]], [[1, { text: "good" }], [3, { text: "fine" }]]);
  assert.match(String(latin1[1]), /^2,UTF-8 text \| byte 0xff at byte 1; text of another encoding is converted by/);
  const long = await read(fixture("long.parquet"));
  assert.match(
    String(long[1]),
    new RegExp(`^2,at most ${MAX_ROW_BYTES} bytes of a row \\| 50000001 or more: divide it`),
  );
  assert.deepEqual([long[0], long[2]], [[1, { text: "short" }], [3, { text: "last" }]]);
  assert.match(
    String(await read(fixture("big.parquet"))),
    /integers below 2\^53 \| 1152921504606846976: write it as text/,
  );
  assert.deepEqual(await read(fixture("empty.parquet")), []);
});

for (const name of ["pages-v1", "pages-v1-dictionary", "pages-v2", "chats-none", "chats-v2"]) {
  test(`parquetRows() reads a row group in parts by its pages, with or without an index of them: ${name}`, async () => {
    const file = fixture(`${name}.parquet`);
    const expected = linesOf("chats.jsonl");
    for (const partBytes of [1, 100, 500, 1500]) {
      for (const [start, end] of [[0, Infinity], [11, 29]] as const) {
        const rows: unknown[] = [];
        for await (const row of parquetRows(file, undefined, { start, end }, partBytes)) {
          assert.equal(row.line, start + rows.length + 1);
          rows.push("value" in row ? row.value : row.problem);
        }
        assert.deepEqual(rows, expected.slice(start, end), `in parts of ${partBytes} bytes from row ${start}`);
      }
    }
  });
}

test("parquetRows() names a damaged page of a row group without an index", async () => {
  using folder = temporaryDirectory();
  const bytes = await readBytes(fixture("pages-v1.parquet"));
  bytes.fill(0xff, 400, 500);
  const file = folder.write("damaged.parquet", bytes);
  const reading = async (): Promise<void> => {
    for await (const row of parquetRows(file, undefined, undefined, 100)) assert.ok(row.line > 0);
  };
  await assert.rejects(reading, {
    name: "FileError",
    message:
      /Cannot read '.*damaged\.parquet': row group 1 of 1, rows \d+ to \d+: .*; the Parquet file is damaged, so get it anew/,
  });
});

test("parquetRows() refuses a page that is too large to be decoded, by its size and before it is read", async () => {
  await assert.rejects(read(fixture("huge-page.parquet")), {
    name: "FileError",
    message: new RegExp(
      "Cannot read '.*huge-page\\.parquet': row group 1 of 1: expected pages of at most 1\\.00 GiB, as one is decoded as a whole, " +
        "got one of 1\\.03 GiB in the column \"text\": write the file with a smaller 'row_group_size'",
    ),
  });
});

longTest("parquetRows() reads a row group of 1 GiB without an index of its pages in little memory", async () => {
  const reader = startRank(new URL("./read_parquet.ts", import.meta.url), [fixture("huge-group.parquet")]);
  assert.equal(await reader.ended, 0, reader.stderr);
  const { rows, characters, peakBytes }: { rows: number; characters: number; peakBytes: number } = JSON.parse(
    reader.stdout,
  );
  assert.deepEqual([rows, characters], [2 ** 10, 2 ** 30]);
  assert.ok(peakBytes < 0.8e9, `${peakBytes} bytes`);
});

test("parquetRows() refuses a file that was cut off, and names the row group of a damaged one", async () => {
  using folder = temporaryDirectory();
  const bytes = await readBytes(fixture("texts.parquet"));
  await assert.rejects(read(folder.write("cut.parquet", bytes.subarray(0, 900))), {
    message:
      /Cannot read '.*cut\.parquet': expected 'PAR1' as the last 4 of its 900 bytes, got .* cut off.* get it anew/,
  });
  await assert.rejects(read(folder.write("none.parquet", new Uint8Array(0))), {
    message: /last 4 of its 0 bytes, got ""/,
  });
  const damaged = bytes.slice();
  const at = new TextDecoder("latin1").decode(bytes).indexOf("PAR1") + 4;
  damaged.fill(0xff, at, at + 200);
  await assert.rejects(read(folder.write("damaged.parquet", damaged)), {
    message:
      /Cannot read '.*damaged\.parquet': row group 1 of 4, rows 1 to 8: .*; the Parquet file is damaged, so get it anew/,
  });
});
