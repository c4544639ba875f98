/** Batches of documents that are kept apart: what rows hold, their order over ranks, resuming, and what is refused. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { DataLoader, type LoaderOptions } from "../../src/data/loader.ts";
import type { MicroBatch } from "../../src/data/micro_batch.ts";
import { packInMemory, tokenCache, tokensInMemory } from "../../src/data/token_stream.ts";
import { openText } from "../../src/data/documents.ts";
import type { SampleStream } from "../../src/data/samples/sample.ts";
import { BYTE_TOKENIZER } from "../../src/data/tokenizer.ts";
import { ArgumentError, CheckpointError, ConfigError } from "../../src/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

/** Documents of these lengths, whose tokens are 100 × document + place. */
const LENGTHS = [5, 2, 9, 1, 3, 8, 4, 6, 2, 7, 3, 12];
const IDS = Int32Array.from(
  LENGTHS.flatMap((length, document) => Array.from({ length }, (_, i) => 100 * document + i)),
);
const TOKENS = tokensInMemory(IDS, "abc", Uint32Array.from(LENGTHS));

function loader(options: Partial<LoaderOptions> = {}): DataLoader {
  const split = { globalBatch: 4, rank: 0, worldSize: 1, microBatches: 1, seed: 7 };
  return new DataLoader({ tokens: TOKENS, sequenceLength: 8, packing: "bfd", ...split, ...options });
}

async function take(source: DataLoader, steps: number): Promise<MicroBatch[]> {
  const all: MicroBatch[] = [];
  for await (const { microBatches } of source.take(steps)) all.push(...microBatches);
  return all;
}

/** The documents of all rows, as ids, after labels and beginnings are compared with them. */
function documentsIn(batches: readonly MicroBatch[]): number[][] {
  const documents: number[][] = [];
  for (const { inputIds, labels, documentStarts, lengths, batch, seq } of batches) {
    assert.deepEqual([inputIds.length, labels.length], [batch * seq, batch * seq]);
    for (let row = 0; row < batch; row++) {
      const [ids, targets] = [inputIds, labels].map((list) => list.subarray(row * seq, (row + 1) * seq));
      const starts = documentStarts?.subarray(row * seq, (row + 1) * seq) ?? new Int32Array(seq);
      const length = lengths?.[row] ?? NaN;
      for (let place = 0; place < length;) {
        assert.equal(starts[place], place);
        let end = place + 1;
        while (end < length && starts[end] === place) end++;
        const document = [...ids?.subarray(place, end) ?? []];
        assert.deepEqual([...targets?.subarray(place, end) ?? []], [...document.slice(1), -100]);
        documents.push(document);
        place = end;
      }
      assert.ok(targets?.subarray(length).every((label) => label === -100), "padding has no labels");
      if (documentStarts !== undefined) assert.ok(starts.subarray(length).every((start) => start === length));
    }
  }
  return documents;
}

/** Documents cut into parts of at most 8. */
function parts(isSplit: boolean): number[][] {
  return LENGTHS.flatMap((length, document) => {
    const all = Array.from({ length }, (_, i) => 100 * document + i);
    return isSplit && length > 8 ? [all.slice(0, 8), all.slice(8)] : [all.slice(0, 8)];
  });
}

const sorted = (documents: readonly (readonly number[])[]) =>
  documents.map((ids) => [...ids]).sort((a, b) => (a[0] ?? 0) - (b[0] ?? 0));

for (const packing of ["bfd", "bfd-split", "none"] as const) {
  test(`DataLoader gives each document once an epoch, apart from others: ${packing}`, async () => {
    const source = loader({ packing, globalBatch: 1 });
    assert.equal(source.numSamples, packing === "none" ? LENGTHS.length : 8);
    const batches = await take(source, source.numSamples);
    assert.deepEqual(sorted(documentsIn(batches)), sorted(parts(packing === "bfd-split")));
    if (packing !== "none") assert.ok(batches.every(({ seq }) => seq === 8));
    const inOrder: MicroBatch[] = [];
    for await (const { microBatches } of loader({ packing })) inOrder.push(...microBatches);
    assert.deepEqual(sorted(documentsIn(inOrder)), sorted(parts(packing === "bfd-split")));
  });
}

test("DataLoader says what packing left out", () => {
  const { rows } = loader();
  assert.deepEqual([rows?.cutSamples, rows?.cutTokens, rows?.tokens], [2, 5, 57]);
  assert.equal(rows?.padding, 1 - 57 / 64);
  assert.equal(loader({ packing: "wrapped" }).rows, undefined);
});

for (const packing of ["bfd", "none"] as const) {
  test(`DataLoader gives the ranks what one rank accumulates in order, and resumes on any number: ${packing}`, async () => {
    const alone = await take(loader({ packing, microBatches: 4 }), 6);
    const split = { packing, worldSize: 2, microBatches: 2 };
    const ranks = await Promise.all([0, 1].map((rank) => take(loader({ ...split, rank }), 6)));
    assert.deepEqual(Array.from({ length: 12 }, (_, m) => ranks.map((batches) => batches[m])).flat(), alone);

    const source = loader({ packing, microBatches: 4 });
    await take(source, 2);
    const state = source.state();
    assert.deepEqual(state, { cursor: 8, step: 2, seed: 7, sequenceLength: 8, dataset: "abc", packing });
    const resumed = await Promise.all([0, 1].map((rank) => {
      const again = loader({ ...split, rank });
      again.restore(JSON.parse(JSON.stringify(state)));
      return take(again, 4);
    }));
    assert.deepEqual(Array.from({ length: 8 }, (_, m) => resumed.map((batches) => batches[m])).flat(), alone.slice(8));
  });
}

test("DataLoader.restore() refuses another packing", async () => {
  const source = loader();
  await source.next();
  assert.throws(() => loader({ packing: "wrapped" }).restore(source.state()), (error) => {
    assert.ok(error instanceof ConfigError);
    assert.match(error.message, /packing: expected bfd, as in the checkpoint, got 'wrapped'|packing.*bfd.*wrapped/);
    return true;
  });
  assert.throws(() => source.restore(loader({ packing: "wrapped" }).state()), /packing/);
});

test("DataLoader pads rows without packing to the longest of their micro-batch, which are about as long", async () => {
  const [batches, whole] = [loader({ packing: "none", globalBatch: 12, microBatches: 4 }), parts(false)];
  const step = await take(batches, 1);
  const lengths = step.map(({ lengths }) => [...lengths ?? []]);
  assert.deepEqual(lengths.flat(), whole.map(({ length }) => length).sort((a, b) => b - a));
  assert.deepEqual(step.map(({ seq }) => seq), lengths.map((list) => Math.max(...list)));
  assert.deepEqual(step.map(({ random }) => random?.firstSample), [0, 3, 6, 9]);
});

test("DataLoader takes samples with labels of their own, and no label goes over a border", async () => {
  const samples: SampleStream = {
    length: 2,
    fingerprint: "chats",
    lengthOf: (index) => index === 0 ? 4 : 3,
    read: (index) =>
      Promise.resolve(
        index === 0
          ? { ids: Int32Array.of(1, 2, 3, 4), labels: Int32Array.of(-100, -100, 3, 4) }
          : { ids: Int32Array.of(5, 6, 7), labels: Int32Array.of(5, 6, -100) },
      ),
    close: () => undefined,
  };
  const [{ inputIds, labels, documentStarts, lengths } = assert.fail()] = await take(
    loader({ tokens: samples, globalBatch: 1 }),
    1,
  );
  assert.deepEqual([...inputIds], [1, 2, 3, 4, 5, 6, 7, 0]);
  assert.deepEqual([...labels], [-100, 3, 4, -100, 6, -100, -100, -100]);
  assert.deepEqual([...documentStarts ?? []], [0, 0, 0, 0, 4, 4, 4, 7]);
  assert.deepEqual([...lengths ?? []], [7]);
  assert.throws(() => loader({ tokens: samples, packing: "wrapped" }), /Cannot pack samples by 'wrapped'/);
});

test("DataLoader refuses to keep apart what has no borders, and nothing at all", () => {
  assert.throws(() => loader({ tokens: tokensInMemory(IDS, "abc") }), (error) => {
    assert.ok(error instanceof ArgumentError);
    assert.equal(
      error.message,
      "Cannot keep the documents of these tokens apart, as they do not say where documents end: give tokensInMemory their lengths, " +
        "or use the packing 'wrapped'",
    );
    return true;
  });
  const nothing = tokensInMemory(new Int32Array(0), "abc", new Uint32Array(0));
  assert.throws(() => loader({ tokens: nothing }), /There are no tokens in 0 samples/);
  assert.throws(() => tokensInMemory(IDS, "abc", Uint32Array.of(3)), /Documents of 3 tokens in all are not 62 tokens/);
});

test("TokenStream.documentLengths() are those of the documents, in memory and in a file", async () => {
  using directory = temporaryDirectory();
  directory.write("text.jsonl", '{"text":"abc"}\n{"text":"d"}\n{"text":"ef"}\n');
  const source = openText([directory.file("text.jsonl")]);
  assert.deepEqual((await packInMemory(source, BYTE_TOKENIZER)).documentLengths?.(), Uint32Array.of(4, 2, 3));
  const cache = tokenCache(source, BYTE_TOKENIZER, directory.file("cache"));
  await cache.build();
  const stream = cache.open();
  assert.deepEqual(stream.documentLengths?.(), Uint32Array.of(4, 2, 3));
  stream.close();
  // Lengths that are not those of all tokens are damage.
  const [name = assert.fail()] = readdirSync(directory.file("cache")).filter((file) => file.startsWith("tokens-"));
  const bytes = readFileSync(directory.file(`cache/${name}`));
  bytes[9 * 2] = 5;
  writeFileSync(directory.file(`cache/${name}`), bytes);
  const damaged = cache.open();
  assert.throws(() => damaged.documentLengths?.(), CheckpointError);
  damaged.close();
});
