/** Streamed data: each row once, the same rows on any number of ranks and after a resume, in all formats, and few windows in memory. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync, zstdCompressSync } from "node:zlib";
import { DataLoader, type LoaderState } from "../../src/data/loader.ts";
import type { MicroBatch } from "../../src/data/micro_batch.ts";
import { packInMemory } from "../../src/data/token_stream.ts";
import { openRows } from "../../src/data/rows/open_rows.ts";
import { openDocuments } from "../../src/data/rows/open_documents.ts";
import type { Packing } from "../../src/data/samples/rows.ts";
import { encodeInMemory, type SampleOptions } from "../../src/data/samples/sample_cache.ts";
import { rowEncoder, textEncoder, type WindowEncoder } from "../../src/data/stream/encode_window.ts";
import { Lane } from "../../src/data/stream/lane.ts";
import { furthestPlaces, StreamedRows } from "../../src/data/stream/streamed_rows.ts";
import { openWindows, type WindowSource } from "../../src/data/stream/window_source.ts";
import { BYTE_TOKENIZER } from "../../src/data/tokenizer.ts";
import { ConfigError } from "../../src/errors.ts";
import { fixturePath } from "../support/golden.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";

const NAMES = { name: "data", textField: "text" };
const SAMPLES: SampleOptions = {
  ...{
    tokenizer: BYTE_TOKENIZER,
    templates: undefined,
    lossOn: undefined,
    maxLength: 64,
    skipBadRows: false,
    ...NAMES,
  },
};
const textWindows = textEncoder({ tokenizer: BYTE_TOKENIZER, ...NAMES, print: "text" });

function rowWindows(options: Partial<SampleOptions> = {}, report = (_text: string): void => {}): WindowEncoder {
  return rowEncoder({ options: { ...SAMPLES, ...options }, columns: ["prompt", "completion"], print: "rows", report });
}

/** Rows of unequal lengths, each of which is another. */
function lines(count: number): string {
  return Array.from(
    { length: count },
    (_, i) => `${JSON.stringify({ prompt: `row ${i}`, completion: "!".repeat(i % 7 + 1) })}\n`,
  ).join("");
}

interface Opened {
  readonly windows: WindowSource;
  /** Numbers of windows that were tokenized. */
  readonly read: string[];
}

async function open(files: readonly string[], encoder: WindowEncoder, windowBytes = 512): Promise<Opened> {
  const read: string[] = [];
  const isText = (file: string): boolean => /\.txt/.test(file);
  const windows = await openWindows({ files, isText, encoder, windowBytes, seed: 5 });
  const noted: WindowSource = {
    ...windows,
    read: (epoch, number) => {
      read.push(`${epoch} ${number}`);
      return windows.read(epoch, number);
    },
  };
  return { windows: noted, read };
}

interface Split {
  readonly rank?: number;
  readonly worldSize?: number;
  readonly microBatches?: number;
  readonly globalBatch?: number;
  readonly packing?: Packing;
  readonly sequenceLength?: number;
}

function loader(parts: readonly WindowSource[], split: Split = {}): DataLoader {
  const { packing = "none", sequenceLength = 64 } = split;
  const order = { packing, sequenceLength, seed: 5 };
  const tokens = new StreamedRows(parts.map((windows, i) => ({ windows, weight: i + 1 })), order);
  return new DataLoader({ ...order, tokens, globalBatch: 8, rank: 0, worldSize: 1, microBatches: 1, ...split });
}

/** Rows of a step without padding, one text for each, in the order of slices. */
const rowsOf = (batches: readonly MicroBatch[]): string[] =>
  batches.flatMap(({ inputIds, labels, batch, seq, lengths }) =>
    Array.from({ length: batch }, (_, row) => {
      const part = (ids: Int32Array): string => ids.subarray(row * seq, row * seq + (lengths?.[row] ?? seq)).join(" ");
      return `${part(inputIds)} | ${part(labels)}`;
    })
  );

/** Steps of a world: the rows of all ranks, micro-batch by micro-batch; and the state behind them. */
async function steps(
  sources: () => Promise<readonly WindowSource[]>,
  count: number,
  { worldSize = 1, ...split }: Split,
  from?: LoaderState,
): Promise<{ readonly rows: readonly string[][]; readonly state: LoaderState }> {
  const ranks: DataLoader[] = [];
  for (let rank = 0; rank < worldSize; rank++) ranks.push(loader(await sources(), { ...split, rank, worldSize }));
  if (from !== undefined) { for (const rank of ranks) rank.restore(from); }
  const rows: string[][] = [];
  for (let step = 0; step < count; step++) {
    const all = await Promise.all(ranks.map((rank) => rank.next()));
    const slices = all[0]?.microBatches.map((_, m) => all.map(({ microBatches }) => microBatches.slice(m, m + 1)));
    rows.push((slices ?? []).flatMap((ofRanks) => ofRanks.flatMap(rowsOf)));
  }
  const states = ranks.map((rank) => rank.state());
  const [first] = states;
  assert.ok(first !== undefined);
  return { rows, state: { ...first, stream: furthestPlaces(states.map(({ stream = [] }) => stream)) } };
}

const counted = (rows: readonly string[]): ReadonlyMap<string, number> => {
  const counts = new Map<string, number>();
  for (const row of rows) counts.set(row, (counts.get(row) ?? 0) + 1);
  return counts;
};

test("a stream gives each row once before any again, the same ones on 1, 2 and 4 ranks, and goes on from a step on another number", async () => {
  using folder = temporaryDirectory();
  const file = folder.write("rows.jsonl", lines(400));
  const sources = async (): Promise<WindowSource[]> => [(await open([file], rowWindows())).windows];
  const whole = await steps(sources, 60, {});
  assert.equal(counted(whole.rows.flat()).size, 400);
  for (const split of [{ worldSize: 2 }, { worldSize: 4 }, { worldSize: 2, microBatches: 2 }, { microBatches: 4 }]) {
    const begun = await steps(sources, 23, split);
    const state: LoaderState = JSON.parse(JSON.stringify(begun.state));
    const ended = await steps(sources, 37, { worldSize: 3 - (split.worldSize ?? 1) > 0 ? 2 : 1 }, state);
    assert.deepEqual([...begun.rows, ...ended.rows], whole.rows, JSON.stringify(split));
    assert.deepEqual(ended.state, whole.state);
  }
});

for (const name of ["rows.jsonl", "rows.jsonl.gz"]) {
  test(`the lanes of ${name} give each row once in an epoch, in another order in the next`, async () => {
    using folder = temporaryDirectory();
    const file = folder.write(name, name.endsWith("gz") ? gzipSync(lines(400)) : lines(400));
    const { windows } = await open([file], rowWindows());
    const epochs: string[][] = [[], []];
    for (let i = 0; i < windows.lanes; i++) {
      const lane = new Lane(windows, i, { packing: "none", sequenceLength: 64, seed: 5 });
      for (;;) {
        const row = await lane.next();
        const epoch = epochs[lane.place.epoch];
        if (epoch === undefined) break;
        epoch.push(...rowsOf([row]));
      }
    }
    const [first = [], second = []] = epochs;
    assert.equal(first.length, 400);
    assert.equal(new Set(first).size, 400);
    assert.deepEqual(second.toSorted(), first.toSorted());
    assert.notDeepEqual(second, first);
  });
}

test("each rank tokenizes windows of its own, and no more than it needs", async () => {
  using folder = temporaryDirectory();
  const file = folder.write("rows.jsonl", lines(4000));
  const ranks = await Promise.all([0, 1].map(() => open([file], rowWindows())));
  for (const [rank, { windows }] of ranks.entries()) {
    const data = loader([windows], { rank, worldSize: 2 });
    for (let step = 0; step < 6; step++) await data.next();
  }
  const [first, second] = ranks.map(({ read }) => new Set(read));
  assert.ok(first !== undefined && second !== undefined);
  assert.ok(first.size > 0 && first.isDisjointFrom(second), "a window was tokenized by both ranks");
  const total = ranks[0]?.windows.byteLength ?? NaN;
  assert.ok((first.size + second.size) * 512 < total / 4, `${first.size + second.size} windows of ${total} bytes`);
});

for (const packing of ["none", "bfd", "bfd-split"] as const) {
  test(`a stream of ${packing} has the samples of data that is tokenized at once, of every format`, async () => {
    using folder = temporaryDirectory();
    const jsonl = lines(300);
    const rows = jsonl.trimEnd().split("\n").map((line): Record<string, string> => JSON.parse(line));
    const csv = `prompt,completion\n${rows.map((row) => `${row["prompt"]},${row["completion"]}\n`).join("")}`;
    const files = [
      folder.write("a.jsonl", jsonl),
      folder.write("a.jsonl.gz", gzipSync(jsonl)),
      folder.write("a.jsonl.zst", zstdCompressSync(jsonl)),
      folder.write("a.csv", csv),
      folder.write("a.json", JSON.stringify(rows)),
    ];
    for (const file of files) {
      const source = await openRows([file], { ...NAMES });
      assert.ok(source !== undefined);
      const all = await encodeInMemory(source, SAMPLES);
      const expected: string[] = [];
      for (let i = 0; i < all.length; i++) expected.push([...(await all.read(i)).ids].join(" "));
      const { windows } = await open([file], rowWindows());
      const found: string[] = [];
      for await (const { microBatches: [batch] } of loader([windows], { packing })) {
        assert.ok(batch !== undefined);
        found.push(...documentsIn(batch));
      }
      assert.deepEqual(found.toSorted(), expected.toSorted(), file);
    }
  });
}

/** The samples in the rows of a batch. */
function documentsIn({ inputIds, batch, seq, lengths, documentStarts }: MicroBatch): string[] {
  const found: string[] = [];
  for (let row = 0; row < batch; row++) {
    const end = lengths?.[row] ?? seq;
    for (let start = 0; start < end;) {
      let next = start + 1;
      while (next < end && documentStarts?.[row * seq + next] !== next) next++;
      if (documentStarts === undefined) next = end;
      found.push(inputIds.subarray(row * seq + start, row * seq + next).join(" "));
      start = next;
    }
  }
  return found;
}

/** The stream of an epoch of one lane, put together again from its rows by their first tokens' places. */
async function streamOf(
  file: string,
  windowBytes: number,
): Promise<{ readonly rows: readonly string[]; readonly lanes: number }> {
  const { windows } = await open([file], textWindows, windowBytes);
  const data = loader([windows], { packing: "wrapped", sequenceLength: 10, globalBatch: 1 });
  const rows: string[] = [];
  for (;;) {
    const { microBatches } = await data.next();
    if (data.state().stream?.some(({ epoch }) => epoch > 0)) return { rows, lanes: windows.lanes };
    rows.push(...rowsOf(microBatches));
  }
}

test("a stream of text from a packed file has all rows of the text, cut anywhere", async () => {
  using folder = temporaryDirectory();
  const text = Array.from(
    { length: 60 },
    (_, i) => `${JSON.stringify({ text: `Line ${i} of the text, ü. ${"ä".repeat(i % 9)}` })}\n`,
  ).join("");
  const plain = folder.write("text.jsonl", text);
  const source = await openDocuments([plain], NAMES);
  const all = await packInMemory(source, BYTE_TOKENIZER);
  const expected: string[] = [];
  for (let start = 0; start + 10 < all.length; start += 10) {
    const ids = new Int32Array(11);
    await all.read(start, ids);
    expected.push(`${ids.subarray(0, 10).join(" ")} | ${ids.subarray(1).join(" ")}`);
  }
  const packed = await streamOf(folder.write("text.jsonl.gz", gzipSync(text)), 16);
  assert.equal(packed.lanes, 1);
  assert.deepEqual(packed.rows.toSorted(), expected.toSorted());
  assert.notDeepEqual(packed.rows, expected);
});

test("pieces of a text are the text, cut at ends of lines, and its end of text comes once", async () => {
  using folder = temporaryDirectory();
  const text = `${"One line of words.\n".repeat(90)}${"ünbröken".repeat(300)} ${"end ".repeat(40)}`;
  for (const name of ["a.txt", "a.txt.gz"]) {
    const file = folder.write(name, name.endsWith("gz") ? gzipSync(text) : text);
    const { windows } = await open([file], textWindows, 100);
    const ids: number[] = [];
    for (let number = 0;; number++) {
      const tokens = await windows.readInOrder(number);
      if (tokens === undefined) break;
      if (tokens === "empty") continue; // of a line that is longer than a window
      assert.ok(!("lengthOf" in tokens));
      const own = new Int32Array(tokens.length);
      await tokens.read(0, own);
      ids.push(...own);
    }
    assert.deepEqual(ids, [...BYTE_TOKENIZER.encode(text), BYTE_TOKENIZER.eosId], name);
  }
});

test("a stream of Parquet has its rows, of row groups and of their pages", async () => {
  for (const name of ["texts.parquet", "big.parquet"]) {
    const source = await openDocuments([fixturePath(`parquet/${name}`)], NAMES);
    const expected = await packInMemory(source, BYTE_TOKENIZER);
    const { windows } = await open([fixturePath(`parquet/${name}`)], textWindows, 2 ** 15);
    let length = 0;
    for (let number = 0;; number++) {
      const tokens = await windows.readInOrder(number);
      if (tokens === undefined) break;
      if (tokens !== "empty") length += tokens.length;
    }
    assert.equal(length, expected.length, name);
  }
});

test("a mixture of streams takes each source by its weight", async () => {
  using folder = temporaryDirectory();
  const [one, two] = [
    folder.write("one.jsonl", lines(100)),
    folder.write("two.jsonl", lines(300).replaceAll("row", "two")),
  ];
  const sources = async (): Promise<WindowSource[]> =>
    Promise.all([one, two].map(async (file) => (await open([file], rowWindows())).windows));
  const { rows } = await steps(sources, 9, { globalBatch: 6 });
  const isTwo = (row: string): boolean => row.startsWith("116 119 111");
  for (const step of rows) assert.equal(step.filter(isTwo).length, 4);
  const halves = await steps(sources, 9, { globalBatch: 6, worldSize: 2 });
  assert.deepEqual(halves.rows, rows);
});

async function firstError(
  folder: TemporaryDirectory,
  text: string,
  options: Partial<SampleOptions> = {},
): Promise<{ error: string; told: string[] }> {
  const told: string[] = [];
  const { windows } = await open([folder.write("bad.jsonl", text)], rowWindows(options, (line) => told.push(line)));
  const data = loader([windows], { globalBatch: 1 });
  try {
    for await (const _ of data) continue;
  } catch (error) {
    assert.ok(error instanceof ConfigError);
    return { error: error.message, told };
  }
  return { error: "", told };
}

test("a row that does not fit is named by its line in the file, and skipped if asked", async () => {
  using folder = temporaryDirectory();
  const text = lines(100).split("\n");
  text[77] = '{"prompt": "no completion"}';
  assert.match((await firstError(folder, text.join("\n"))).error, /bad\.jsonl:78: data: expected the columns/);
  const { error, told } = await firstError(folder, text.join("\n"), { skipBadRows: true });
  assert.equal(error, "");
  assert.match(told.join("\n"), /^Skipped 1 row that did not fit: .*bad\.jsonl:78: expected/);
});

test("DataLoader.restore() refuses a stream's state for other data, and for data that is not streamed", async () => {
  using folder = temporaryDirectory();
  const [one, two] = [folder.write("one.jsonl", lines(100)), folder.write("two.jsonl", lines(101))];
  const of = async (file: string): Promise<DataLoader> => loader([(await open([file], rowWindows())).windows]);
  const state = (await of(one)).state();
  const other = await of(two);
  assert.throws(() => other.restore(state), /data: expected the text and tokenizer of the checkpoint/);
  const { stream: _, ...without } = state;
  const same = await of(one);
  assert.throws(() => same.restore(without), /streaming: expected false, as in the checkpoint, got true/);
  assert.throws(
    () => same.restore({ ...state, cursor: 8 }),
    /data\.stream: expected places of all lanes after 8 samples/,
  );
  assert.equal(readFileSync(one, "utf8"), lines(100));
});
