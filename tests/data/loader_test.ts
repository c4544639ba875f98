/**
 * Micro-batches: what they hold, their order over ranks, and resuming.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { LoaderOptions, LoaderState } from "../../src/data/loader.ts";
import type { MicroBatch } from "../../src/data/micro_batch.ts";
import { DataLoader } from "../../src/data/loader.ts";
import type { TokenStream } from "../../src/data/token_stream.ts";
import { tokensInMemory } from "../../src/data/token_stream.ts";
import { ArgumentError, ConfigError } from "../../src/errors.ts";

const TOKENS = tokensInMemory(Int32Array.from({ length: 1000 }, (_, i) => i * 3), "abc");

function loader(options: Partial<LoaderOptions> = {}): DataLoader {
  return new DataLoader({
    tokens: TOKENS,
    sequenceLength: 8,
    globalBatch: 12,
    rank: 0,
    worldSize: 1,
    microBatches: 1,
    seed: 7,
    ...options,
  });
}

/** The micro-batches of some steps. */
async function take(source: DataLoader, steps: number): Promise<MicroBatch[]> {
  const all: MicroBatch[] = [];
  for await (const { microBatches } of source.take(steps)) all.push(...microBatches);
  return all;
}

const firstIds = (batches: readonly MicroBatch[]): number[] =>
  batches.flatMap(({ inputIds, batch, seq }) => Array.from({ length: batch }, (_, row) => inputIds[row * seq] ?? -1));

test("DataLoader.next() gives windows of the stream, labeled with the tokens that follow", async () => {
  const source = loader({ microBatches: 3 });
  assert.equal(source.numSamples, 124); // floor(999 / 8)
  assert.equal(source.batchSize, 4);
  const seen = new Set<number>();
  const batches = await take(source, 11);
  assert.equal(batches.length, 33);
  for (const { inputIds, labels, batch, seq } of batches.slice(0, 31)) {
    assert.deepEqual([inputIds.length, labels.length, batch, seq], [32, 32, 4, 8]);
    for (let row = 0; row < 4; row++) {
      const start = (inputIds[row * 8] ?? 0) / 3;
      assert.equal(start % 8, 0);
      seen.add(start / 8);
      for (let i = 0; i < 8; i++) {
        assert.equal(inputIds[row * 8 + i], (start + i) * 3);
        assert.equal(labels[row * 8 + i], (start + i + 1) * 3);
      }
    }
  }
  assert.equal(seen.size, 124, "31 micro-batches of 4 are one epoch");
  assert.ok(seen.has(0) && seen.has(123));
});

test("DataLoader is deterministic, and other with another seed", async () => {
  const [a, b, c] = await Promise.all([7, 7, 8].map((seed) => take(loader({ seed }), 25)));
  assert.deepEqual(a, b);
  assert.notDeepEqual(a, c);
});

test("DataLoader gives the ranks what one rank accumulates in order", async () => {
  const alone = await take(loader({ microBatches: 4 }), 3);
  const ranks = await Promise.all([0, 1].map((rank) => take(loader({ rank, worldSize: 2, microBatches: 2 }), 3)));
  const merged = Array.from({ length: 6 }, (_, m) => ranks.map((batches) => batches[m])).flat();
  assert.deepEqual(merged, alone);
});

test("DataLoader.restore() goes on with the very next sample, on any number of ranks", async () => {
  const source = loader({ worldSize: 2, microBatches: 2 });
  await take(source, 5);
  const saved: unknown = JSON.parse(JSON.stringify(source.state()));
  assert.deepEqual(saved, { cursor: 60, step: 5, seed: 7, sequenceLength: 8, dataset: "abc" });
  const state = { cursor: 60, seed: 7, sequenceLength: 8, dataset: "abc" };

  const expected = firstIds((await take(loader(), 15)).slice(5));
  for (const worldSize of [1, 2, 3, 4]) {
    const ranks = await Promise.all(Array.from({ length: worldSize }, async (_, rank) => {
      const resumed = loader({ rank, worldSize });
      await resumed.next(); // A batch read ahead before the restore must not be handed out after it.
      resumed.restore(state);
      return take(resumed, 10);
    }));
    const steps = Array.from(
      { length: 10 },
      (_, step) => firstIds(ranks.map((batches) => batches[step]).filter((b) => b !== undefined)),
    );
    assert.deepEqual(steps.flat(), expected);
  }
  assert.deepEqual(await take(source, 1), (await take(loader({ worldSize: 2, microBatches: 2 }), 6)).slice(10));
});

test("DataLoader gives every token once to be read by `for await`, the rest too, and stays where it is", async () => {
  for (const worldSize of [1, 2, 3]) {
    const seen: number[] = [];
    const counts: number[] = [];
    for (let rank = 0; rank < worldSize; rank++) {
      const source = loader({ worldSize, rank });
      await source.next();
      const before = source.state();
      const all: MicroBatch[] = [];
      for await (const { microBatches } of source) all.push(...microBatches);
      assert.deepEqual(source.state(), before);
      counts.push(all.length);
      for (const { inputIds, labels, batch, seq } of all) {
        assert.equal(inputIds.length, batch * seq);
        assert.deepEqual([...labels], Array.from(inputIds, (id) => id + 3));
        seen.push(...inputIds);
      }
    }
    assert.deepEqual(seen.sort((a, b) => a - b), Array.from({ length: 999 }, (_, i) => i * 3));
    assert.deepEqual(counts, [[12], [11, 11], [11, 10, 11]][worldSize - 1]);
  }
});

test("DataLoader.state() counts the samples of steps that were handed out", async () => {
  const source = loader({ microBatches: 2 });
  assert.equal(source.state().cursor, 0);
  await source.next();
  assert.equal(source.state().cursor, 12);
  assert.equal(source.epoch, 12 / 124);
});

test("DataLoader.restore() lists everything that is another", () => {
  const source = loader();
  const state = { cursor: 12, seed: 8, sequenceLength: 16, dataset: "def" };
  assert.throws(() => source.restore(state), (error) => {
    assert.ok(error instanceof ConfigError);
    assert.equal(error.problems.length, 3);
    assert.match(error.message, /^ {2}seed: expected 8, as in the checkpoint, got 7/m);
    assert.match(error.message, /^ {2}sequenceLength: expected 16, as in the checkpoint, got 8/m);
    assert.match(
      error.message,
      /^ {2}data: expected the text and tokenizer of the checkpoint, got another text or tokenizer\. To train the checkpoint/m,
    );
    return true;
  });
  assert.throws(() => source.restore({ ...source.state(), cursor: -1 }), /data\.cursor: expected an integer from 0/);
  assert.equal(source.state().cursor, 0);
});

test("DataLoader counts steps on after a resume with another global batch, in whole numbers", async () => {
  const numbers = async (source: DataLoader, steps: number): Promise<(number | undefined)[]> => {
    const seen: (number | undefined)[] = [];
    for await (const { step } of source.take(steps)) seen.push(step);
    return seen;
  };
  const first = loader();
  assert.deepEqual(await numbers(first, 3), [1, 2, 3]);
  const state: LoaderState = JSON.parse(JSON.stringify(first.state()));
  assert.deepEqual([state.cursor, state.step], [36, 3]);
  for (const [globalBatch, after] of [[8, 44], [24, 60], [5, 41], [36, 72]] as const) {
    const other = loader({ globalBatch });
    other.restore(state);
    assert.deepEqual(await numbers(other, 1), [4]);
    assert.equal(other.state().cursor, after);
    assert.deepEqual(await numbers(other, 2), [5, 6]);
    // No sample is taken twice, and none is left out.
    const [resumed, whole] = [loader({ globalBatch }), loader({ globalBatch: 1 })];
    resumed.restore(state);
    whole.restore({ ...state, step: undefined });
    assert.deepEqual(firstIds(await take(resumed, 2)), firstIds(await take(whole, 2 * globalBatch)));
  }
  // A state without steps, as earlier versions saved them.
  const old = loader({ globalBatch: 8 });
  old.restore({ ...state, step: undefined });
  assert.deepEqual(await numbers(old, 1), [5]);
  assert.throws(
    () => old.restore({ ...state, step: 2.5 }),
    /data\.step: expected an integer from 0 in the checkpoint, got 2\.5/,
  );
});

test("DataLoader.next() reports a failed read to the call that needs it", async () => {
  let reads = 0;
  const failing: TokenStream = {
    ...TOKENS,
    read: (start, into) => ++reads > 12 ? Promise.reject(new RangeError("gone")) : TOKENS.read(start, into),
  };
  const source = loader({ tokens: failing });
  await source.next();
  await new Promise((resolve) => setTimeout(resolve, 5)); // An unhandled rejection would end the test run here.
  await assert.rejects(source.next(), /gone/);
});

test("DataLoader refuses too little text", () => {
  const tokens = tokensInMemory(new Int32Array(8), "abc");
  assert.throws(() => loader({ tokens }), /sequenceLength 8 takes 9 tokens, got 8 in all/);
  assert.throws(() => loader({ sequenceLength: 0 }), ArgumentError);
  assert.throws(() => loader({ worldSize: 5 }), ArgumentError);
});
