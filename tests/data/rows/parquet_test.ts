/** Rows of Parquet files of pyarrow: all codecs, page versions and types, and what is said of files that are broken. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { FileError } from "../../../src/errors.ts";
import { parquetRows } from "../../../src/data/rows/parquet.ts";
import { MAX_ROW_BYTES } from "../../../src/data/rows/row.ts";
import { readBytes, readTextSync } from "../../../src/runtime/files.ts";
import { fixturePath } from "../../support/golden.ts";
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
  assert.deepEqual(await read(fixture("columns.parquet"), ["messages", "text"]), [
    [
      1,
      'one of the columns "messages", "text" | "id", "body": rename columns, or name that of the text (\'--text-field\')',
    ],
  ]);
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
