/** Rows of files: what each format gives, and what is said of files that are broken. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { constants, gzipSync, zstdCompressSync } from "node:zlib";
import { rowsOf } from "../../../src/data/rows/rows.ts";
import { MAX_ROW_BYTES } from "../../../src/data/rows/row.ts";
import { temporaryDirectory } from "../../support/temporary.ts";

/** Rows as `line value`, bad ones as `line expected | got`. */
async function read(name: string, contents: string | Uint8Array): Promise<string[]> {
  using folder = temporaryDirectory();
  const rows: string[] = [];
  for await (const row of rowsOf(folder.write(name, contents), "data")) {
    const said = "value" in row ? JSON.stringify(row.value) : `${row.problem.expected} | ${row.problem.got}`;
    rows.push(`${row.line} ${said}`);
  }
  return rows;
}

const OBJECTS = [{ a: 1 }, { a: 'x, "y"\n[z]', b: [1, { c: "}" }] }, { a: "\\" }, { é: "😀" }];
const EXPECTED = OBJECTS.map((value) => JSON.stringify(value));
const withoutLines = (rows: readonly string[]): string[] => rows.map((row) => row.replace(/^\d+ /, ""));

test("rowsOf() reads JSON lines with their numbers, plain and by gzip, blank lines left out", async () => {
  const text = `\ufeff${EXPECTED[0]}\n\n  \r\n${EXPECTED.slice(1).join("\r\n")}`;
  const expected = ["1", "4", "5", "6"].map((line, i) => `${line} ${EXPECTED[i]}`);
  assert.deepEqual(await read("a.jsonl", text), expected);
  assert.deepEqual(await read("a.ndjson.gz", gzipSync(text)), expected);
  assert.deepEqual(await read("a.json", text), expected);
});

test("rowsOf() reads a JSON array, however it is written", async () => {
  for (const indent of [undefined, 1, 4]) {
    for (
      const text of [JSON.stringify(OBJECTS, null, indent), `\ufeff \n ${JSON.stringify(OBJECTS, null, indent)}\n`]
    ) {
      assert.deepEqual(withoutLines(await read("a.json", text)), EXPECTED);
      assert.deepEqual(withoutLines(await read("a.json.gz", gzipSync(text))), EXPECTED);
    }
  }
  assert.deepEqual(await read("a.json", "[]"), []);
  assert.deepEqual(await read("a.json", '[\n{"a": 1},\n\n{"b": 2}]'), ['2 {"a":1}', '4 {"b":2}']);
});

test("rowsOf() reads pieces of a JSON array that end anywhere", async () => {
  // A piece is a MiB: the text before the rows moves their ends over its border.
  for (let before = 0; before < 40; before++) {
    const text = `[{"a": "${"x".repeat(2 ** 20 - 40 + before)}"}, ${EXPECTED.join(", ")}]`;
    assert.deepEqual(withoutLines(await read("a.json", text)).slice(1), EXPECTED);
    const lines = `{"a": "${"x".repeat(2 ** 20 - 40 + before)}"}\n${EXPECTED.join("\n")}`;
    assert.deepEqual(withoutLines(await read("a.jsonl", lines)).slice(1), EXPECTED);
  }
});

test("rowsOf() reads CSV with quotes, line ends in cells and empty cells", async () => {
  const text = 'prompt,completion,n\r\n"a, ""b""",c,\r\n"two\nlines","",3\n\n';
  assert.deepEqual(await read("a.csv", text), [
    '2 {"prompt":"a, \\"b\\"","completion":"c","n":null}',
    '3 {"prompt":"two\\nlines","completion":"","n":"3"}',
  ]);
  assert.deepEqual(await read("a.csv.gz", gzipSync(text)), await read("a.csv", text));
});

test("rowsOf() gives rows that cannot be read with what is wrong, and goes on behind them", async () => {
  const bytes = new TextEncoder().encode('{"a": 1}\n{"a": \n[1]\n"x"\n{"a": "?"}\n{"a": 2}\n');
  bytes[bytes.indexOf(63)] = 0xff;
  const [first, broken, array, text, utf8, last] = await read("a.jsonl", bytes);
  assert.equal(first, '1 {"a":1}');
  assert.match(broken ?? "", /^2 one JSON object a line \| "{\\"a\\":" \(.+\)$/);
  assert.equal(array, "3 one JSON object a line | [1]");
  assert.equal(text, '4 one JSON object a line | "x"');
  assert.match(utf8 ?? "", /^5 UTF-8 text \| byte 0xff at byte 7; text of another encoding is converted by/);
  assert.equal(last, '6 {"a":2}');
  assert.deepEqual(await read("a.json", '[{"a": 1}, 7, "x,]", {"a": }, {"a": 2}]').then((rows) => rows.length), 5);
  assert.match(
    (await read("a.csv", "a,b\n1,2\n1,2,3\n"))[1] ?? "",
    /^3 2 cells, as the header has \| 3: a cell with a comma/,
  );
});

test("rowsOf() does not keep a row of more than 50 MB, and says so", async () => {
  const long = `{"a": "${"x".repeat(MAX_ROW_BYTES)}"}`;
  const said = new RegExp(`^1 at most ${MAX_ROW_BYTES} bytes of a row \\| \\d+ or more: divide it`);
  const lines = await read("a.jsonl", `${long}\n{"a": 1}\n`);
  assert.match(lines[0] ?? "", said);
  assert.equal(lines[1], '2 {"a":1}');
  const array = await read("a.json", `[${long},\n{"a": 1}]`);
  assert.match(array[0] ?? "", said);
  assert.equal(array[1], '2 {"a":1}');
});

test("rowsOf() names file and place of a file that is cut off or broken", async () => {
  const text = EXPECTED.join("\n").repeat(1000);
  await assert.rejects(read("a.jsonl.gz", gzipSync(text).subarray(0, -20)), {
    message: /Cannot unpack '.*a\.jsonl\.gz': it ends in the middle of what gzip wrote: it was cut off, so get it anew/,
  });
  const damaged = gzipSync(text);
  damaged[damaged.length - 6] = ~(damaged.at(-6) ?? 0);
  await assert.rejects(read("a.jsonl.gz", damaged), {
    message: /Cannot unpack '.*': it is damaged, by gzip's own checks/,
  });
  const broken: readonly (readonly [string, string, RegExp])[] = [
    [
      "a.json",
      '[{"a": 1}\n',
      /a\.json:2: data: expected a JSON array of objects, got the end of the file before the array's/,
    ],
    ["a.json", '[{"a": 1}\n{"a": 2}]', /a\.json:2: data: .*got '{' where a comma should part two rows/],
    ["a.json", "[{}]\nx", /a\.json:2: .*got 'x' behind the array's end/],
    ["a.csv", "text\nx\n", /a\.csv:1: data: expected a first line with the columns' names, .* got "text"/],
    ["a.csv", "a,a\n1,2\n", /got 'a' twice/],
    ["a.csv", 'a,b\n1,2\n3,"4\n', /a\.csv:3: data: expected a quote that ends the cell, got the end of the file/],
  ];
  for (const [name, contents, message] of broken) await assert.rejects(read(name, contents), { message });
});

test("rowsOf() reads all frames of zstd, and refuses a file that was cut off or damaged", async () => {
  const text = `${EXPECTED.join("\n")}\n`.repeat(5_000);
  const frames = [text.slice(0, 1000), text.slice(1000)].map((part) => {
    return zstdCompressSync(part, { params: { [constants.ZSTD_c_checksumFlag]: 1 } });
  });
  const skipped = Uint8Array.of(0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3);
  const bytes = Buffer.concat([skipped, ...frames]);
  const expected = await read("a.jsonl", text);
  assert.equal(expected.length, 20_000);
  assert.deepEqual(await read("a.jsonl.zst", bytes), expected);
  assert.deepEqual(await read("a.json.zst", zstdCompressSync("[1, {}]")), [
    "1 a JSON object as each element | 1",
    "1 {}",
  ]);
  for (const length of [bytes.length - 1, bytes.length - 100, skipped.length + 5, skipped.length - 2]) {
    await assert.rejects(read("a.jsonl.zst", bytes.subarray(0, length)), {
      message: new RegExp(
        `Cannot unpack '.*': it ends at byte ${length}, in the middle of the frame of zstd that begins at byte`,
      ),
    });
  }
  let refused = 0;
  const step = Math.floor(bytes.length / 20);
  for (let place = bytes.length - 1; place >= skipped.length; place -= step) {
    const damaged = Buffer.from(bytes);
    damaged[place] = ~(damaged[place] ?? 0);
    const found = await read("a.jsonl.zst", damaged).catch((error: unknown) => {
      assert.match(String(error), /by zstd's own checks|in the middle of the frame|expected a frame/);
      refused++;
      return expected;
    });
    assert.deepEqual(found, expected, `byte ${place}`); // a bit that nothing reads
  }
  assert.ok(refused >= 18, `${refused} were refused`);
  await assert.rejects(read("a.jsonl.zst", Buffer.concat([bytes, Buffer.from("more text")])), {
    message: /expected a frame of zstd at byte \d+, got the number 0x65726f6d/,
  });
});
