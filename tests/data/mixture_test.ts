/** Mixtures: exact counts, each row once an epoch of its source, the same rows on any number of ranks and after a resume. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { DataLoader, type LoaderOptions } from "../../src/data/loader.ts";
import type { MicroBatch } from "../../src/data/micro_batch.ts";
import { MixtureOrder, weightedInputs } from "../../src/data/mixture.ts";
import { samplesInMemory } from "../../src/data/samples/sample_file.ts";
import type { SampleStream } from "../../src/data/samples/sample.ts";
import { ArgumentError, ConfigError } from "../../src/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const SIZES = [50, 20, 7];
const WEIGHTS = [7, 3, 2];

/** Samples of a source, whose ids tell source and number; lengths differ. */
function source(which: number, count: number): SampleStream {
  const samples = Array.from({ length: count }, (_, i) => {
    const ids = new Int32Array(2 + (i * 5 + which) % 6).fill(which * 1000 + i);
    return { ids, labels: ids };
  });
  const tokens = samples.reduce((sum, { ids }) => sum + ids.length, 0);
  const summary = { samples: count, tokens, targets: tokens, cutSamples: 0, skipped: 0, firstSkipped: [] };
  return samplesInMemory(samples, summary, `source ${which}`);
}

function loader(options: Partial<LoaderOptions> = {}): DataLoader {
  const parts = SIZES.map((count, i) => ({ tokens: source(i, count), weight: WEIGHTS[i] ?? NaN }));
  return new DataLoader({
    ...{ tokens: { parts }, packing: "none", sequenceLength: 8, globalBatch: 12, seed: 3 },
    ...{ rank: 0, worldSize: 1, microBatches: 1, ...options },
  });
}

const idsOf = (batches: readonly MicroBatch[]): number[] =>
  batches.flatMap(({ inputIds, batch, seq }) => Array.from({ length: batch }, (_, row) => inputIds[row * seq] ?? -1));

async function take(data: DataLoader, steps: number): Promise<MicroBatch[]> {
  const all: MicroBatch[] = [];
  for await (const { microBatches } of data.take(steps)) all.push(...microBatches);
  return all;
}

test("MixtureOrder.at() gives each source its part of every block, and each sample once before any again", () => {
  const order = new MixtureOrder(SIZES, WEIGHTS, 9);
  assert.equal(order.numSamples, Math.ceil(50 * 12 / 7));
  const seen = Array.from({ length: 1200 }, (_, i) => order.at(i).sample);
  const sourceOf = (sample: number): number => sample < 50 ? 0 : sample < 70 ? 1 : 2;
  for (let block = 0; block < 100; block++) {
    const counts = [0, 0, 0];
    for (const sample of seen.slice(block * 12, block * 12 + 12)) {
      counts[sourceOf(sample)] = (counts[sourceOf(sample)] ?? 0) + 1;
    }
    assert.deepEqual(counts, WEIGHTS);
  }
  for (const [which, size] of SIZES.entries()) {
    const own = seen.filter((sample) => sourceOf(sample) === which);
    // Within a block samples are permuted, so an epoch's border may lie within one; what was taken is counted by number.
    const times = new Map<number, number>();
    for (const sample of own) times.set(sample, (times.get(sample) ?? 0) + 1);
    assert.equal(times.size, size);
    const [least, most] = [Math.min(...times.values()), Math.max(...times.values())];
    assert.ok(most - least <= 1, `source ${which}: ${least} to ${most}`);
  }
  const other = new MixtureOrder(SIZES, WEIGHTS, 10);
  assert.notDeepEqual(seen.slice(0, 12), Array.from({ length: 12 }, (_, i) => other.at(i).sample));
  assert.deepEqual(
    seen,
    Array.from({ length: 1200 }, (_, i) => new MixtureOrder(SIZES, WEIGHTS, 9).at(i).sample).slice(0, 1200),
  );
});

test("DataLoader.next() gives the rows of a mixture alike on 1 to 4 ranks, and after a resume on another number", async () => {
  const one = idsOf(await take(loader(), 10));
  assert.equal(one.length, 120);
  assert.equal(one.filter((id) => id < 1000).length, 70);
  assert.equal(one.filter((id) => id >= 2000).length, 20);
  const inSteps = (ids: readonly number[]): number[][] =>
    Array.from({ length: 10 }, (_, step) => ids.slice(step * 12, step * 12 + 12).sort((a, b) => a - b));
  for (const worldSize of [2, 3, 4]) {
    const before = await Promise.all(Array.from({ length: worldSize }, async (_, rank) => {
      const data = loader({ rank, worldSize });
      const rows = await take(data, 4);
      return { rows, state: data.state() };
    }));
    const after = await Promise.all(Array.from({ length: 5 - worldSize }, async (_, rank) => {
      const data = loader({ rank, worldSize: 5 - worldSize });
      data.restore(JSON.parse(JSON.stringify(before[0]?.state)));
      return await take(data, 6);
    }));
    const stepOf = (parts: readonly (readonly MicroBatch[])[], step: number): number[] =>
      parts.flatMap((rows) => idsOf(rows.slice(step, step + 1)));
    const all = [
      ...Array.from({ length: 4 }, (_, step) => stepOf(before.map(({ rows }) => rows), step)),
      ...Array.from({ length: 6 }, (_, step) => stepOf(after, step)),
    ].flat();
    assert.deepEqual(inSteps(all), inSteps(one), `${worldSize} ranks`);
  }
});

test("DataLoader gives rows of a mixture padded to the longest, with their lengths and labels", async () => {
  for (const { inputIds, labels, lengths, batch, seq } of await take(loader({ microBatches: 3 }), 5)) {
    assert.equal(seq, Math.max(...lengths ?? []));
    for (let row = 0; row < batch; row++) {
      const id = inputIds[row * seq] ?? -1;
      const length = 2 + (id % 1000 * 5 + Math.floor(id / 1000)) % 6;
      assert.equal(lengths?.[row], length);
      const expected = Array.from({ length: seq }, (_, i) => i < length ? id : 0);
      assert.deepEqual([...inputIds.subarray(row * seq, (row + 1) * seq)], expected);
      const next = Array.from({ length: seq }, (_, i) => i < length - 1 ? id : -100);
      assert.deepEqual([...labels.subarray(row * seq, (row + 1) * seq)], next);
    }
  }
});

test("DataLoader.restore() refuses a mixture of other weights", () => {
  const state = loader().state();
  const tokens = source(0, 50);
  const other = loader({ tokens: { parts: [{ tokens, weight: 1 }] } });
  assert.throws(() => other.restore(state), ConfigError);
  assert.throws(() => loader({ tokens: { parts: [{ tokens, weight: 0.5 }] } }), ArgumentError);
  assert.throws(() => loader({ tokens: { parts: [] } }), ArgumentError);
});

test("weightedInputs() parts weights from sources, and refuses some without and weights of nothing", () => {
  const weights = (...inputs: string[]): unknown => weightedInputs(inputs, "data").map(({ weight }) => weight);
  assert.deepEqual(weightedInputs(["a.jsonl", "b/*.txt"], "data"), [{
    inputs: ["a.jsonl", "b/*.txt"],
    weight: undefined,
  }]);
  assert.deepEqual(weightedInputs(["a.jsonl:0.7", "hf://datasets/o/n/*.parquet:0.3"], "data"), [
    { inputs: ["a.jsonl"], weight: 7 },
    { inputs: ["hf://datasets/o/n/*.parquet"], weight: 3 },
  ]);
  assert.deepEqual(weights("a:2", "b:4.0", "c:1.5"), [4, 8, 3]);
  using folder = temporaryDirectory();
  const file = folder.write("a:3", "text");
  assert.deepEqual(weightedInputs([file], "data"), [{ inputs: [file], weight: undefined }]);
  assert.throws(
    () => weights("a:1", "b"),
    /data: expected a weight behind each source, as in 'a\.jsonl:0\.7', got 'b' without one/,
  );
  assert.throws(() => weights("a:1", "b:0"), /data: expected weights above 0, got 'b:0': leave it out/);
  assert.throws(
    () => weights("a:0.1234567", "b:1"),
    /whole numbers of at most 1000000 in all, got 0\.1234567, 1: give them fewer/,
  );
});
