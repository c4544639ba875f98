/**
 * Weights of Hugging Face directories: single, sharded, and every way in which index and files can disagree.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { INDEX_FILE, openHfWeights, planHfShards } from "../../src/checkpoint/format/hf_index.ts";
import { writeSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { bfloat16, float32 } from "../../src/dtype.ts";
import { ArgumentError, CheckpointError } from "../../src/errors.ts";
import type { TemporaryDirectory } from "../support/temporary.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const SPECS = [
  { name: "model.embed_tokens.weight", dtype: float32, shape: [4, 2] }, // 32 bytes
  { name: "model.norm.weight", dtype: float32, shape: [2] }, // 8 bytes
  { name: "lm_head.weight", dtype: bfloat16, shape: [4, 2] }, // 16 bytes
];

/** Bytes that tell tensors apart. */
const fill = (name: string, length: number): Uint8Array => new Uint8Array(length).fill(name.length);

async function write(directory: TemporaryDirectory, maxShardBytes: number): Promise<string | undefined> {
  const { shards, index } = planHfShards(SPECS, maxShardBytes);
  for (const { file, specs } of shards) {
    await writeSafetensors(
      directory.file(file),
      specs,
      { format: "pt" },
      (entry) => [fill(entry.name, entry.byteLength)],
    );
  }
  if (index !== undefined) directory.write(INDEX_FILE, index);
  return index;
}

async function refusal(directory: TemporaryDirectory, message: RegExp): Promise<CheckpointError> {
  try {
    using _ = await openHfWeights(directory.path);
  } catch (error) {
    assert.ok(error instanceof CheckpointError, String(error));
    assert.match(error.message, message);
    return error;
  }
  throw new assert.AssertionError({ message: "openHfWeights() took it" });
}

for (
  const [what, limit, files] of [["a single file", 1000, 1], ["shards", 40, 2], ["a shard a tensor", 1, 3]] as const
) {
  test(`openHfWeights() reads ${what} that planHfShards() planned`, async () => {
    using directory = temporaryDirectory();
    const index = await write(directory, limit);
    assert.equal(index === undefined, files === 1);
    using weights = await openHfWeights(directory.path);
    assert.equal(weights.files.length, files);
    assert.deepEqual([...weights.tensors.keys()].sort(), SPECS.map(({ name }) => name).sort());
    for (const { name, shape, dtype } of SPECS) {
      const file = weights.get(name).parts[0]?.file ?? assert.fail(name);
      const entry = file.get(name);
      assert.deepEqual(entry.shape, shape);
      assert.equal(entry.dtype, dtype);
      assert.equal(file.metadata.get("format"), "pt");
      const bytes = new Uint8Array(entry.byteLength - 3);
      await file.readInto(name, 3, entry.byteLength, bytes);
      assert.deepEqual(bytes, fill(name, entry.byteLength - 3));
    }
    assert.equal(weights.has("nothing"), false);
    assert.throws(() => weights.get("nothing"), CheckpointError);
  });
}

test("planHfShards() names files and writes the index as transformers does", () => {
  const { shards, index, totalBytes } = planHfShards(SPECS, 40);
  assert.deepEqual(shards.map(({ file, specs }) => [file, specs.map(({ name }) => name)]), [
    ["model-00001-of-00002.safetensors", ["model.embed_tokens.weight", "model.norm.weight"]],
    ["model-00002-of-00002.safetensors", ["lm_head.weight"]],
  ]);
  assert.equal(totalBytes, 56);
  const expected = {
    metadata: { total_size: 56 },
    weight_map: {
      "lm_head.weight": "model-00002-of-00002.safetensors",
      "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
      "model.norm.weight": "model-00001-of-00002.safetensors",
    },
  };
  assert.equal(index, `${JSON.stringify(expected, null, 2)}\n`);
  assert.throws(() => planHfShards(SPECS, 0), ArgumentError);
});

test("openHfWeights() names missing shards, all of them", async () => {
  using directory = temporaryDirectory();
  directory.write(
    INDEX_FILE,
    JSON.stringify({ weight_map: { a: "x.safetensors", b: "y.safetensors", c: "x.safetensors" } }),
  );
  await refusal(directory, /2 of the 2 files .* missing: x\.safetensors, y\.safetensors/);
});

test("openHfWeights() lists all names that index and files do not share", async () => {
  using directory = temporaryDirectory();
  const index = await write(directory, 40);
  const changed = (index ?? "").replace('"lm_head.weight"', '"lm_head.wait"')
    .replace('"model.norm.weight": "model-00001', '"model.norm.weight": "model-00002');
  directory.write(INDEX_FILE, changed);
  const error = await refusal(directory, /do not agree/);
  assert.match(
    error.message,
    /2 missing from the files it names: 'lm_head\.wait' \(model-00002-of-00002\.safetensors\), 'model\.norm\.weight' \(model-00002/,
  );
  assert.match(
    error.message,
    /2 in files but not in it: 'model\.norm\.weight' \(model-00001.*'lm_head\.weight' \(model-00002/,
  );
});

for (
  const shard of [
    "../model.safetensors",
    "/etc/model.safetensors",
    "a/b.safetensors",
    "a\\b.safetensors",
    "model.bin",
    "..",
    "",
  ]
) {
  test(`openHfWeights() does not leave the directory for ${JSON.stringify(shard)}`, async () => {
    using directory = temporaryDirectory();
    directory.write(INDEX_FILE, JSON.stringify({ weight_map: { w: shard } }));
    const error = await refusal(directory, /must name a \.safetensors file of the same directory/);
    assert.equal(error.tensor, "w");
  });
}

for (
  const [what, text, message] of [
    ["text", "not json", /must be JSON/],
    ["an array", "[]", /must be a JSON object/],
    ["no map", "{}", /weight_map must be an object, got nothing/],
    ["an empty map", '{"weight_map":{}}', /at least one tensor/],
    ["a number for a file", '{"weight_map":{"w":1}}', /must name a file, got 1/],
    ["a tensor twice", '{"weight_map":{"w":"a.safetensors","w":"b.safetensors"}}', /got "w" twice/],
  ] as const
) {
  test(`openHfWeights() refuses an index with ${what}`, async () => {
    using directory = temporaryDirectory();
    directory.write(INDEX_FILE, text);
    await refusal(directory, message);
  });
}

test("openHfWeights() refuses a damaged shard and a directory without weights", async () => {
  using directory = temporaryDirectory();
  await refusal(directory, /Expected model\.safetensors or model\.safetensors\.index\.json, got neither/);
  directory.write("pytorch_model.bin", "x");
  await refusal(
    directory,
    /got neither but pickled weights: write a Hugging Face folder of it by save_pretrained of transformers$/,
  );
  await write(directory, 40);
  directory.write("model-00002-of-00002.safetensors", new Uint8Array(20));
  await refusal(directory, /model-00002-of-00002\.safetensors: A header has at least 2 bytes/);
  await assert.rejects(openHfWeights(directory.file("absent")), /Expected a directory with weights, got none/);
});
