/** Hugging Face directories in and out of whole and sharded models. @module */
import assert from "node:assert/strict";
import * as fs from "node:fs";
import { writeSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { numelOf } from "../../src/shape.ts";
import { sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { type Task, TINY_LLAMA } from "./bed.ts";
import { runRanks } from "./run_ranks.ts";

const UNTIED = { ...TINY_LLAMA, tie_word_embeddings: false };
const SHAPES: Readonly<Record<string, readonly number[]>> = {
  "model.embed_tokens.weight": [32, 16],
  "model.layers.0.self_attn.q_proj.weight": [16, 16],
  "model.layers.0.self_attn.k_proj.weight": [8, 16],
  "model.layers.0.self_attn.v_proj.weight": [8, 16],
  "model.layers.0.self_attn.o_proj.weight": [16, 16],
  "model.layers.0.mlp.gate_proj.weight": [24, 16],
  "model.layers.0.mlp.up_proj.weight": [24, 16],
  "model.layers.0.mlp.down_proj.weight": [16, 24],
  "model.layers.0.input_layernorm.weight": [16],
  "model.layers.0.post_attention_layernorm.weight": [16],
  "model.norm.weight": [16],
};
const ELEMENTS = Object.values(SHAPES).reduce((sum, shape) => sum + numelOf(shape), 0);

/** A tensor of a file that a test makes. */
interface Source {
  readonly dtype?: string;
  readonly shape?: readonly number[];
  /** Added to every value. */
  readonly plus?: number;
}

/** A value that float16 and bfloat16 hold exactly. */
function valueAt(name: string, element: number): number {
  return ((element * 5 + name.length) % 64 - 32) / 64;
}

/** Writes a directory with the tensors of TINY_LLAMA, changed: `undefined` leaves one out. */
async function write(directory: string, changes: Readonly<Record<string, Source | undefined>> = {}): Promise<string> {
  fs.mkdirSync(directory, { recursive: true });
  const sources = new Map<string, Source | undefined>(Object.entries({
    ...Object.fromEntries(Object.keys(SHAPES).map((name) => [name, {}])),
    ...changes,
  }));
  const specs = [...sources].flatMap(([name, source]) =>
    source === undefined
      ? []
      : [{ name, dtype: source.dtype ?? "F32", shape: source.shape ?? SHAPES[name] ?? [32, 16] }]
  );
  await writeSafetensors(`${directory}/model.safetensors`, specs, { format: "pt" }, ({ name, code, shape }) => {
    // A second copy of the embedding has the embedding's values.
    const as = name === "lm_head.weight" ? "model.embed_tokens.weight" : name;
    const plus = sources.get(name)?.plus ?? 0;
    const values = Array.from({ length: numelOf(shape) }, (_, i) => valueAt(as, i) + plus);
    if (code === "F16") return [new Uint8Array(Float16Array.from(values).buffer)];
    if (code === "F64") return [new Uint8Array(Float64Array.from(values).buffer)];
    if (code === "I32") return [new Uint8Array(Int32Array.from(values).buffer)];
    const words = new Uint32Array(Float32Array.from(values).buffer);
    if (code === "BF16") return [new Uint8Array(Uint16Array.from(words, (word) => word >>> 16).buffer)];
    return [new Uint8Array(words.buffer)];
  });
  return directory;
}

/** The values of all tensors of a directory's weights, read without the library's own reader. */
function readWeights(directory: string): ReadonlyMap<string, Float32Array> {
  const all = new Map<string, Float32Array>();
  for (const file of fs.readdirSync(directory).filter((name) => name.endsWith(".safetensors"))) {
    const bytes = fs.readFileSync(`${directory}/${file}`);
    const start = 8 + Number(bytes.readBigUInt64LE(0));
    const header: Record<string, { dtype: string; data_offsets: [number, number] }> = JSON.parse(
      bytes.subarray(8, start).toString(),
    );
    for (const [name, entry] of Object.entries(header)) {
      if (name === "__metadata__") continue;
      const [begin, end] = entry.data_offsets;
      const raw = new Uint8Array(bytes.subarray(start + begin, start + end));
      const floats = entry.dtype === "F32"
        ? new Float32Array(raw.buffer)
        : new Float32Array(Uint32Array.from(new Uint16Array(raw.buffer), (half) => half << 16).buffer);
      all.set(name, floats);
    }
  }
  return all;
}

test("saveHfDirectory() writes the same weights from any number of ranks, and loadHfWeights() reads them on any", async () => {
  using temporary = temporaryDirectory();
  const tokenizer = temporary.write("tokenizer.json", "{}");
  const tasks: Task[] = [];
  for (const llama of [TINY_LLAMA, UNTIED]) {
    for (const world of [1, 2, 3, 4]) {
      const directory = `${temporary.path}/${llama["tie_word_embeddings"]}-${world}`;
      tasks.push({ do: "save-hf", world, directory, seed: 5, llama, tokenizerFiles: [tokenizer] });
      for (const to of [1, 3]) tasks.push({ do: "load-hf", world: to, directory, seed: 5, llama });
    }
  }
  const outcomes = await runRanks(tasks);
  for (const [i, task] of tasks.entries()) {
    const ranks = outcomes[i] ?? [];
    assert.deepEqual(ranks.map(({ error, wrong }) => [error, wrong]), ranks.map(() => ["", 0]));
    if (task.do !== "load-hf") continue;
    // All ranks together read every element once, and no rank much more than its part.
    const elements = ELEMENTS + (task.llama === UNTIED ? 512 : 0);
    const read = ranks.map(({ value }) => Number(value["bytesRead"]));
    assert.equal(read.reduce((sum, bytes) => sum + bytes, 0), 4 * elements);
    if (task.world === 3) assert.ok(Math.max(...read) < 0.6 * 4 * elements, `ranks read ${read}`);
  }
  const names = ["config.json", "model.safetensors", "tokenizer.json"];
  const first = fs.readFileSync(`${temporary.path}/true-1/model.safetensors`);
  for (const world of [1, 2, 3, 4]) {
    assert.deepEqual(fs.readdirSync(`${temporary.path}/true-${world}`).sort(), names);
    assert.ok(first.equals(fs.readFileSync(`${temporary.path}/true-${world}/model.safetensors`)));
  }
  assert.ok(!readWeights(`${temporary.path}/true-2`).has("lm_head.weight"));
  assert.ok(readWeights(`${temporary.path}/false-2`).has("lm_head.weight"));
  const config = JSON.parse(fs.readFileSync(`${temporary.path}/true-2/config.json`, "utf8"));
  assert.deepEqual(config, { ...TINY_LLAMA, dtype: "float32" });
});

test("saveHfDirectory() turns a directory from one file into shards and back, leaving nothing stale", async () => {
  using temporary = temporaryDirectory();
  const directory = temporary.path;
  const task = { world: 2, directory, llama: TINY_LLAMA } as const;
  temporary.write("README.md", "mine");
  temporary.write(".model-00001-of-00009.safetensors.partial", "left by a killed save");
  await runRanks([{ ...task, do: "save-hf", seed: 1 }]);
  const [, sharded] = await runRanks([
    { ...task, do: "save-hf", seed: 2, maxShardBytes: 3000 },
    { ...task, do: "load-hf", world: 3, seed: 2 },
  ]);
  assert.deepEqual(sharded?.map(({ error, wrong }) => [error, wrong]), [["", 0], ["", 0], ["", 0]]);
  const names = fs.readdirSync(directory);
  const shards = names.filter((name) => /^model-\d{5}-of-\d{5}\.safetensors$/.test(name));
  assert.deepEqual(
    names.sort(),
    ["README.md", "config.json", ...shards, "model.safetensors.index.json"].sort(),
  );
  assert.ok(shards.length > 2);
  const [, single] = await runRanks([
    { ...task, do: "save-hf", seed: 3, bfloat16: true },
    { ...task, do: "load-hf", seed: 3, bfloat16: true },
  ]);
  assert.deepEqual(single?.map(({ error, wrong }) => [error, wrong]), [["", 0], ["", 0]]);
  assert.deepEqual(fs.readdirSync(directory).sort(), ["README.md", "config.json", "model.safetensors"]);
  assert.equal(JSON.parse(fs.readFileSync(`${directory}/config.json`, "utf8")).dtype, "bfloat16");
  assert.ok(fs.statSync(`${directory}/model.safetensors`).size < 2 * ELEMENTS + 2500);
});

test("saveHfDirectory() that fails on one rank stops all, and leaves what was there", async () => {
  using temporary = temporaryDirectory();
  const task = { world: 3, directory: temporary.path, llama: TINY_LLAMA } as const;
  await runRanks([{ ...task, do: "save-hf", seed: 1 }]);
  const before = fs.readFileSync(`${temporary.path}/model.safetensors`);
  const [failed] = await runRanks([{ ...task, do: "save-hf", seed: 2, broken: 2 }]);
  assert.match(failed?.[2]?.error ?? "", /^Error: this memory cannot be reached/);
  for (const rank of [0, 1]) {
    assert.match(failed?.[rank]?.error ?? "", /^CollectiveError: .*rank 2 failed: Error: this/);
  }
  assert.deepEqual(fs.readdirSync(temporary.path).sort(), ["config.json", "model.safetensors"]);
  assert.ok(before.equals(fs.readFileSync(`${temporary.path}/model.safetensors`)));
});

test("loadHfWeights() reads float16, bfloat16 and float64 as float32", async () => {
  using temporary = temporaryDirectory();
  const dtypes = ["F16", "BF16", "F64", "F32"];
  const changes = Object.fromEntries(Object.keys(SHAPES).map((name, i) => [name, { dtype: dtypes[i % 4] ?? "F32" }]));
  await write(`${temporary.path}/in`, { ...changes, "model.layers.0.self_attn.rotary_emb.inv_freq": { shape: [4] } });
  const out = `${temporary.path}/out`;
  // The loaded values are written again, since they follow from no seed.
  const outcomes = await runRanks([
    { do: "load-hf", world: 2, directory: `${temporary.path}/in`, seed: 0, llama: TINY_LLAMA, saveTo: out },
  ]);
  assert.deepEqual(outcomes[0]?.map(({ error }) => error), ["", ""]);
  assert.deepEqual(outcomes[0]?.[0]?.value["ignored"], ["model.layers.0.self_attn.rotary_emb.inv_freq"]);
  const weights = readWeights(out);
  assert.equal(weights.size, Object.keys(SHAPES).length);
  for (const [name, values] of weights) assert.deepEqual(values, values.map((_, i) => valueAt(name, i)), name);
});

test("loadHfWeights() lists everything that is wrong and loads nothing", async () => {
  using temporary = temporaryDirectory();
  const directory = await write(temporary.path, {
    "model.norm.weight": undefined,
    "model.layers.0.mlp.up_proj.weight": undefined,
    "model.layers.0.mlp.down_proj.weight": { shape: [24, 16] },
    "model.layers.0.self_attn.q_proj.weight": { dtype: "I32" },
    "model.layers.1.mlp.up_proj.weight": { shape: [24, 16], dtype: "BF16" },
  });
  const [outcomes] = await runRanks([{ do: "load-hf", world: 2, directory, seed: 0, llama: TINY_LLAMA }]);
  for (const { error } of outcomes ?? []) {
    assert.equal(
      error,
      `CheckpointError: ${directory}: Tensors do not fit the model, 5 problems:\n` +
        "  missing: 'model.layers.0.mlp.up_proj.weight' [24, 16]\n" +
        "  missing: 'model.norm.weight' [16]\n" +
        "  dtype: 'model.layers.0.self_attn.q_proj.weight' expected F32, F16, BF16, F64, got I32\n" +
        "  shape: 'model.layers.0.mlp.down_proj.weight' expected [16, 24], got [24, 16]\n" +
        "  unexpected: 'model.layers.1.mlp.up_proj.weight' BF16 [24, 16]",
    );
  }
});

test("loadHfWeights() takes a second copy of a tied tensor only if it is equal, and wants one that is not tied", async () => {
  using temporary = temporaryDirectory();
  const equal = await write(`${temporary.path}/equal`, { "lm_head.weight": {} });
  const unequal = await write(`${temporary.path}/unequal`, { "lm_head.weight": { plus: 1 } });
  const single = await write(`${temporary.path}/single`);
  const [taken, refused, untied, missing] = await runRanks([
    { do: "load-hf", world: 3, directory: equal, seed: 0, llama: TINY_LLAMA },
    { do: "load-hf", world: 1, directory: unequal, seed: 0, llama: TINY_LLAMA },
    { do: "load-hf", world: 2, directory: unequal, seed: 0, llama: UNTIED },
    { do: "load-hf", world: 2, directory: single, seed: 0, llama: UNTIED },
  ]);
  assert.deepEqual(taken?.map(({ error }) => error), ["", "", ""]);
  assert.deepEqual(taken?.[0]?.value["ignored"], ["lm_head.weight"]);
  assert.match(
    refused?.[0]?.error ?? "",
    /tied: 'lm_head.weight' and 'model.embed_tokens.weight' should be one tensor, but differ; set "tie_word_embeddings"/,
  );
  assert.deepEqual(untied?.map(({ error }) => error), ["", ""]);
  for (const { error } of missing ?? []) {
    assert.match(error, /missing: 'lm_head.weight' \[32, 16\]; .*set "tie_word_embeddings" to true in config.json/);
  }
});

test("loadHfWeights() that fails on one rank stops all", async () => {
  using temporary = temporaryDirectory();
  const directory = await write(temporary.path);
  const [outcomes] = await runRanks([{ do: "load-hf", world: 3, directory, seed: 0, llama: TINY_LLAMA, broken: 1 }]);
  assert.match(outcomes?.[1]?.error ?? "", /^Error: this memory cannot be reached/);
  for (const rank of [0, 2]) {
    assert.match(outcomes?.[rank]?.error ?? "", /^CollectiveError: .*rank 1 failed: Error: this/);
  }
});

test("loadHfWeights() refuses a directory without weights, on all ranks", async () => {
  using temporary = temporaryDirectory();
  const [outcomes] = await runRanks([
    { do: "load-hf", world: 2, directory: temporary.path, seed: 0, llama: TINY_LLAMA },
  ]);
  for (const { error } of outcomes ?? []) assert.match(error, /^CheckpointError: .*Expected model.safetensors or/);
});

/** Copies the weights of a checkpoint, which are named and annotated as PyTorch's, and nothing beside them. */
async function writeShards(directory: string, world: number): Promise<string[]> {
  await runRanks([{ do: "save", world, directory: `${directory}/own`, seed: 3, llama: TINY_LLAMA }]);
  const from = `${directory}/own/checkpoint-1`;
  const names = fs.readdirSync(from).sort().filter((name) => name.startsWith("shard-"));
  fs.mkdirSync(`${directory}/dcp`);
  for (const name of names) fs.copyFileSync(`${from}/${name}`, `${directory}/dcp/${name}`);
  return names;
}

test("loadHfWeights() reads the shards that PyTorch's distributed checkpoint writes, on any number of ranks", async () => {
  using temporary = temporaryDirectory();
  assert.ok((await writeShards(temporary.path, 3)).length >= 3);
  const task = { do: "load-hf", directory: `${temporary.path}/dcp`, seed: 3, llama: TINY_LLAMA } as const;
  for (const ranks of await runRanks([1, 2, 4].map((world): Task => ({ ...task, world })))) {
    assert.deepEqual(ranks.map(({ error, wrong }) => [error, wrong]), ranks.map(() => ["", 0]));
    assert.ok(ranks.every(({ compared }) => compared > 0));
  }
});

test("loadHfWeights() refuses shards that lack or repeat elements, by name", async () => {
  using temporary = temporaryDirectory();
  const [first = ""] = await writeShards(temporary.path, 2);
  const directory = `${temporary.path}/dcp`;
  const task: Task = { do: "load-hf", world: 2, directory, seed: 3, llama: TINY_LLAMA };
  fs.copyFileSync(`${directory}/${first}`, `${directory}/shard-00009-model-00001-of-00001.safetensors`);
  const [twice] = await runRanks([task]);
  for (const { error } of twice ?? []) {
    assert.match(error, /CheckpointError: .*tensor '.*': Parts must not overlap, but/);
  }
  fs.rmSync(`${directory}/shard-00009-model-00001-of-00001.safetensors`);
  fs.rmSync(`${directory}/${first}`);
  const [absent] = await runRanks([task]);
  for (const { error } of absent ?? []) {
    assert.match(error, /Expected parts of all \d+ elements of .*: a shard is missing/);
  }
});

test("loadHfWeights() lets rank 0 read for all", async () => {
  using temporary = temporaryDirectory();
  const { path } = temporary;
  await writeShards(path, 2);
  const whole = { world: 2, directory: `${path}/hf`, llama: TINY_LLAMA, seed: 3 };
  await runRanks([{ ...whole, do: "save-hf", maxShardBytes: 2000, bfloat16: true }]);
  const load = { do: "load-hf", llama: TINY_LLAMA, seed: 3, broadcastFromRank0: true } as const;
  const outcomes = await runRanks([
    { ...load, world: 3, directory: `${path}/hf`, bfloat16: true },
    { ...load, world: 2, directory: `${path}/dcp` },
    { ...load, world: 2, directory: `${path}/none` },
  ]);
  const absent = outcomes[2] ?? [];
  assert.match(absent[0]?.error ?? "", /^CheckpointError: .*Expected a directory with weights, got none/);
  assert.match(absent[1]?.error ?? "", /^CollectiveError: .*rank 0 failed: CheckpointError/);
  for (const ranks of outcomes.slice(0, 2)) {
    assert.deepEqual(ranks.map(({ error, wrong }) => [error, wrong]), ranks.map(() => ["", 0]));
    assert.deepEqual(ranks.map(({ value }) => Number(value["bytesRead"]) > 0), ranks.map((_, rank) => rank === 0));
  }
});
