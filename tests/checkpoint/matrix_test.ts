/** Checkpoints saved on N ranks and loaded on M: every pair of 1, 2, 3, 4 and 8, bit for bit. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { temporaryDirectory } from "../support/temporary.ts";
import type { Task } from "./bed.ts";
import { runRanks } from "./run_ranks.ts";
import { sharedTest as test } from "../support/share.ts";

const ELEMENTS = 37 * 24 + 2 * (40 * 12 + 3 * 50 * 8 + 100) + 1;
/** Elements of buffers, which every rank has. */
const BUFFERED = 3;

test("loadCheckpoint() gives on any number of ranks the bits that any number of ranks saved", async () => {
  using temporary = temporaryDirectory();
  const worlds = [1, 2, 3, 4, 8];
  const tasks: Task[] = [];
  for (const from of worlds) {
    const directory = `${temporary.path}/from-${from}`;
    tasks.push({ do: "save", world: from, directory, seed: from, step: 10 * from });
    for (const to of worlds) tasks.push({ do: "load", world: to, directory, seed: from, step: 10 * from });
  }
  const outcomes = await runRanks(tasks);
  for (const [i, task] of tasks.entries()) {
    const ranks = outcomes[i] ?? [];
    assert.deepEqual(ranks.map(({ error }) => error), ranks.map(() => ""));
    if (task.do === "save") continue;
    assert.equal(ranks.reduce((sum, { wrong }) => sum + wrong, 0), 0);
    // The parameters and AdamW's two states, each element once, and the buffer on every rank.
    const elements = 3 * ELEMENTS + task.world * BUFFERED;
    assert.equal(ranks.reduce((sum, { compared }) => sum + compared, 0), elements);
    assert.equal(ranks.reduce((sum, { value }) => sum + Number(value["bytesRead"]), 0), elements * 4);
    for (const { value } of ranks) {
      assert.equal(value["step"], task.step);
      assert.deepEqual(value["state"], { seed: task.seed, cursor: 2 ** 40 + 1, rate: 0.1 + 0.2 });
      assert.deepEqual(value["steps"], Array.from({ length: 8 }, (_, n) => (task.step ?? 0) + n));
    }
  }
});

test("loadCheckpoint() lets rank 0 read for all, into other units than were saved", async () => {
  using temporary = temporaryDirectory();
  const directory = temporary.path;
  const outcomes = await runRanks([
    { do: "save", world: 3, directory, seed: 6, step: 4 },
    { do: "load", world: 4, directory, seed: 6, step: 4, broadcastFromRank0: true, oneUnit: true },
    { do: "load", world: 2, directory, seed: 6, step: 4, oneUnit: true },
    { do: "load", world: 1, directory, seed: 6, step: 4, broadcastFromRank0: true },
  ]);
  for (const ranks of outcomes) {
    assert.deepEqual(ranks.map(({ error, wrong }) => [error, wrong]), ranks.map(() => ["", 0]));
  }
  const read = (outcomes[1] ?? []).map(({ value }) => [value["bytesRead"], Number(value["fileBytesRead"]) > 0]);
  assert.deepEqual(read, [[4 * (3 * ELEMENTS + BUFFERED), true], [0, false], [0, false], [0, false]]);
});

test("saveCheckpoint() names and annotates shards as PyTorch does, one box of a name in a file", async () => {
  using temporary = temporaryDirectory();
  await runRanks([{ do: "save", world: 2, directory: temporary.path, seed: 1, step: 7 }]);
  const names = readdirSync(`${temporary.path}/checkpoint-7`).sort();
  assert.ok(names.includes("shard-00001-model-00001-of-00002.safetensors"));
  assert.ok(names.includes("optimizer-shard-00002-model-00002-of-00002.safetensors"));
  assert.ok(names.includes("config.json") && names.includes("manifest.json"));
  assert.deepEqual(readdirSync(temporary.path), ["checkpoint-7"]);
  const covered = new Map<string, number>();
  for (const name of names.filter((name) => name.startsWith("shard-"))) {
    const bytes = readFileSync(`${temporary.path}/checkpoint-7/${name}`);
    const header = JSON.parse(bytes.subarray(8, 8 + Number(bytes.readBigUInt64LE(0))).toString());
    const { DCP_SHARDING_INFO, DCP_VERSION, format } = header.__metadata__;
    assert.deepEqual([DCP_VERSION, format], ["1.0", "pt"]);
    const info = JSON.parse(DCP_SHARDING_INFO);
    delete header.__metadata__;
    assert.deepEqual(Object.keys(info).sort(), Object.keys(header).sort());
    for (const [fqn, { shape }] of Object.entries<{ shape: number[] }>(header)) {
      assert.equal(info[fqn].saved_offsets.length, shape.length);
      covered.set(fqn, (covered.get(fqn) ?? 0) + shape.reduce((product, size) => product * size, 1));
    }
  }
  assert.equal(covered.size, 9);
  assert.equal([...covered.values()].reduce((sum, count) => sum + count, 0), ELEMENTS + BUFFERED);
});

test("saveCheckpoint() writes replicated parameters once, and both forms load into each other", async () => {
  using temporary = temporaryDirectory();
  const directory = temporary.path;
  const [saved, sharded, whole] = await runRanks([
    { do: "save", world: 3, directory, seed: 4, whole: true, environment: { runtime: "bun 1", version: "1" } },
    { do: "load", world: 2, directory, seed: 4, environment: { runtime: "deno 2", version: "1" } },
    { do: "load", world: 2, directory, seed: 4, whole: true, environment: { runtime: "bun 1", version: "1" } },
  ]);
  const bytes = Number(saved?.[0]?.value["byteLength"]);
  assert.ok(bytes > 12 * ELEMENTS && bytes < 12 * ELEMENTS + 20_000, `${bytes} bytes`);
  assert.deepEqual(sharded?.map(({ error, wrong }) => [error, wrong]), [["", 0], ["", 0]]);
  assert.deepEqual(whole?.map(({ error, wrong, compared }) => [error, wrong, compared]), [
    ["", 0, 3 * ELEMENTS + BUFFERED],
    ["", 0, 3 * ELEMENTS + BUFFERED],
  ]);
  assert.deepEqual(sharded?.[1]?.value["differences"], ["runtime was bun 1, is deno 2", "worldSize was 3, is 2"]);
  assert.deepEqual(whole?.[0]?.value["differences"], ["worldSize was 3, is 2"]);
});
