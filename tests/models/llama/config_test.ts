/**
 * Llama's configuration: both spellings, defaults, refusals; and the rotary frequencies that come of it.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../../src/device/registry.ts";
import { ConfigError, UnsupportedError } from "../../../src/errors.ts";
import { resolveLlamaConfig } from "../../../src/models/llama/config.ts";
import { inverseFrequencies, RotaryTables } from "../../../src/nn/rotary.ts";
import { buildModel } from "../../../src/models/registry.ts";
import { allClose } from "../../support/allclose.ts";
import { readGolden, readJson } from "../../support/golden.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });

const MINIMAL = { vocab_size: 10, hidden_size: 8, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2 };

test("resolveLlamaConfig() fills in transformers' defaults", () => {
  assert.deepEqual(resolveLlamaConfig(MINIMAL), {
    vocabSize: 10,
    hiddenSize: 8,
    intermediateSize: 16,
    activation: "silu",
    numLayers: 1,
    numHeads: 2,
    numKvHeads: 2,
    headDim: 4,
    maxPositions: 2048,
    rmsNormEps: 1e-6,
    rope: { dim: 4, theta: 10000, scaling: { type: "default" }, maxPositions: 2048 },
    tieWordEmbeddings: false,
    attentionBias: false,
    mlpBias: false,
    init: { kind: "normal", mean: 0, std: 0.02 },
    paddingIdx: undefined,
    attentionDropout: 0,
  });
});

test("resolveLlamaConfig() reads rotary options in the spelling of transformers 4 and 5", () => {
  const llama3 = { factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 64 };
  const old = resolveLlamaConfig({ ...MINIMAL, rope_theta: 500000, rope_scaling: { rope_type: "llama3", ...llama3 } });
  const now = resolveLlamaConfig({
    ...MINIMAL,
    rope_parameters: { rope_type: "llama3", rope_theta: 500000, ...llama3 },
  });
  assert.deepEqual(old, now);
  assert.deepEqual(old.rope.scaling, {
    type: "llama3",
    factor: 8,
    lowFreqFactor: 1,
    highFreqFactor: 4,
    originalMaxPositions: 64,
  });
  assert.deepEqual(
    resolveLlamaConfig({ ...MINIMAL, rope_scaling: { type: "linear", factor: 2 } }).rope.scaling,
    { type: "linear", factor: 2 },
  );
  assert.deepEqual(resolveLlamaConfig({ ...MINIMAL, rope_scaling: null, head_dim: null }), resolveLlamaConfig(MINIMAL));
});

test("resolveLlamaConfig() lists everything that is wrong", () => {
  assert.throws(() => resolveLlamaConfig({ vocab_size: -1, hidden_size: "8", num_hidden_layers: 1 }), (error) => {
    assert.ok(error instanceof ConfigError);
    const paths = error.problems.map(({ path }) => path).sort();
    assert.deepEqual(
      paths,
      ["hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"].map((key) => `config.json ${key}`),
    );
    return true;
  });
  assert.throws(
    () => resolveLlamaConfig({ ...MINIMAL, hidden_size: 9 }),
    /head_dim: expected an integer, got 4\.5/,
  );
  assert.throws(() => resolveLlamaConfig({ ...MINIMAL, head_dim: 3 }), /head_dim/);
  assert.throws(
    () => resolveLlamaConfig({ ...MINIMAL, num_attention_heads: 4, num_key_value_heads: 3 }),
    /expected a divisor of 4, got 3/,
  );
  assert.throws(
    () => resolveLlamaConfig({ ...MINIMAL, pad_token_id: 10 }),
    /pad_token_id: expected an id below vocab_size 10, got 10/,
  );
  assert.throws(() => resolveLlamaConfig({ ...MINIMAL, pad_token_id: -11 }), ConfigError);
});

test("resolveLlamaConfig() says in words what is wrong, and which key was probably meant", () => {
  const { hidden_size: hidden, ...rest } = MINIMAL;
  assert.throws(() => resolveLlamaConfig(rest), {
    message: "Configuration has 1 problem:\n  config.json hidden_size: expected a number, got nothing",
  });
  assert.throws(() => resolveLlamaConfig({ ...rest, hiden_size: hidden, num_key_value_head: 1 }), {
    message: "Configuration has 2 problems:\n" +
      "  config.json hiden_size: expected a known key, got 'hiden_size'. Did you mean 'hidden_size'?\n" +
      "  config.json num_key_value_head: expected a known key, got 'num_key_value_head'. Did you mean 'num_key_value_heads'?",
  });
  assert.throws(
    () => resolveLlamaConfig({ ...MINIMAL, hidden_size: "8", rope_scaling: { type: "linear", factor: -1 } }),
    /hidden_size: expected a number, got '8'\n {2}config\.json rope_scaling\.factor: expected a number > 0, got -1$/,
  );
  // Keys of transformers that change nothing here, however near to one that does.
  const others = { bos_token_id: 1, eos_token_id: 2, use_cache: true, torch_dtype: "float32", pretraining_tp: 1 };
  assert.deepEqual(resolveLlamaConfig({ ...MINIMAL, ...others }), resolveLlamaConfig(MINIMAL));
  assert.equal(resolveLlamaConfig({ ...MINIMAL, hiden_size: 3 }).hiddenSize, hidden, "both are there");
});

test("resolveLlamaConfig() counts a negative pad_token_id from the back, as PyTorch's embedding does", () => {
  assert.equal(resolveLlamaConfig({ ...MINIMAL, pad_token_id: -1 }).paddingIdx, 9);
  assert.equal(resolveLlamaConfig({ ...MINIMAL, pad_token_id: 0 }).paddingIdx, 0);
  assert.equal(resolveLlamaConfig({ ...MINIMAL, pad_token_id: null }).paddingIdx, undefined);
});

test("resolveLlamaConfig() refuses options that change the result and are not implemented", () => {
  for (
    const option of [
      { hidden_act: "mish" },
      { rope_scaling: { type: "dynamic", factor: 2 } },
      { rope_parameters: { rope_type: "default", partial_rotary_factor: 0.5 } },
    ]
  ) {
    assert.throws(() => resolveLlamaConfig({ ...MINIMAL, ...option }), UnsupportedError);
  }
  assert.throws(
    () => buildModel(device, { ...MINIMAL, model_type: "mamba" }),
    /^UnsupportedError: Cannot build a model of model_type 'mamba': 'deepseek_v2', .* and 'smollm3' are supported$/,
  );
  assert.throws(
    () => buildModel(device, { ...MINIMAL, model_type: "lama" }),
    /Cannot build a model of model_type 'lama': .* are supported\. Did you mean 'llama'\?$/,
  );
  assert.throws(() => buildModel(device, MINIMAL), UnsupportedError);
});

test("buildModel() allocates nothing", () => {
  const before = device.allocator.stats.inUse;
  const model = buildModel(device, { ...MINIMAL, model_type: "llama" });
  assert.equal(model.vocabSize, 10);
  assert.equal(model.maxPositions, 2048);
  assert.equal(device.allocator.stats.inUse, before);
});

for (const variant of ["rope_llama3", "legacy_rope_linear", "padding", "odd", "grouped_bias"]) {
  test(`inverseFrequencies() of '${variant}' are transformers' to the last bits`, async () => {
    const golden = await readGolden(`llama-${variant}/expected.safetensors`);
    const config = resolveLlamaConfig(readJson(`llama-${variant}/config.json`));
    allClose(
      inverseFrequencies(device, config.rope),
      golden.floats("inv_freq"),
      { relative: 1.2e-7, absolute: 0 },
      "frequencies",
    );
  });
}

test("RotaryTables.upTo() makes tables once, and larger ones when a longer sequence comes", () => {
  const before = device.allocator.stats.inUse;
  const options = resolveLlamaConfig(MINIMAL).rope;
  const tables = new RotaryTables(device, options);
  const [cos, sin] = tables.upTo(5);
  assert.deepEqual([cos.shape, sin.shape], [[8, 2], [8, 2]]);
  const frequencies = inverseFrequencies(device, options);
  const angles = Array.from({ length: 16 }, (_, i) => Math.floor(i / 2) * (frequencies[i % 2] ?? 0));
  allClose(cos.toArray(), angles.map(Math.cos), { relative: 1e-6, absolute: 1e-7 }, "cosines");
  allClose(sin.toArray(), angles.map(Math.sin), { relative: 1e-6, absolute: 1e-7 }, "sines");
  assert.equal(tables.upTo(3)[0], cos);
  const [longer, other] = tables.upTo(9);
  assert.deepEqual(longer.shape, [16, 2]);
  assert.ok(cos.disposed && sin.disposed);
  [longer, other].forEach((table) => table.dispose());
  assert.equal(device.allocator.stats.inUse, before);
});
