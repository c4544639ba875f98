/** The optimizer that a run's configuration makes: its class, groups and schedule. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { resolveConfig } from "../../src/config/resolve.ts";
import { openDevice } from "../../src/device/registry.ts";
import { ConfigError } from "../../src/errors.ts";
import { buildModel } from "../../src/models/registry.ts";
import { at } from "../../src/at.ts";
import { ALL_OPTIMIZER_NAMES } from "../../src/optim/registry.ts";
import { SCHEDULE_NAMES } from "../../src/optim/schedule.ts";
import { type RunConfig, TRAIN_SECTIONS } from "../../src/train/config.ts";
import { optimizerOf, scheduleOf } from "../../src/train/optimizer.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });
const model = buildModel(device, {
  ...{ model_type: "llama", vocab_size: 32, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2 },
  ...{ num_attention_heads: 2, max_position_embeddings: 16, attention_bias: true, tie_word_embeddings: false },
});

async function configOf(...argv: readonly string[]): Promise<RunConfig> {
  return await resolveConfig(TRAIN_SECTIONS, { argv });
}

test("optimizerOf() takes every name, Transformers' too, and the rates that are usual for it", async () => {
  const made = new Map<string, readonly [string, number | undefined]>();
  for (const name of ALL_OPTIMIZER_NAMES) {
    const optimizer = optimizerOf(model, await configOf("--optimizer", name));
    made.set(name, [optimizer.constructor.name, optimizer.groups[0]?.learningRate]);
  }
  assert.deepEqual(Object.fromEntries(made), {
    ...{ adamw: ["AdamW", 2e-3], adamw_torch: ["AdamW", 2e-3], adamw_torch_fused: ["AdamW", 2e-3] },
    ...{ adamw8bit: ["AdamW8bit", 2e-3], adamw_8bit: ["AdamW8bit", 2e-3], adamw_bnb_8bit: ["AdamW8bit", 2e-3] },
    ...{ lion: ["Lion", 2e-4], lion_32bit: ["Lion", 2e-4], muon: ["Muon", 2e-3], adafactor: ["Adafactor", 0.01] },
    sgd: ["SGD", 2e-3],
  });
});

test("optimizerOf() with muon leaves embedding, head, norms and biases to AdamW", async () => {
  const { groups } = optimizerOf(model, await configOf("--optimizer", "muon"));
  const byMuon = groups.flatMap((group) => "useMuon" in group && group.useMuon === true ? group.parameters : []);
  assert.equal(byMuon.length, 2 * 7);
  assert.ok(byMuon.every(({ fqn }) => /layers\.\d+\..*proj\.weight$/.test(fqn)));
  assert.equal(groups.flatMap(({ parameters }) => parameters).length, [...model.parameters()].length);
});

test("optimizerOf() with decayOn weights leaves out biases and norms, and factors fit patterns in order", async () => {
  const factors = JSON.stringify({ "layers\\.0\\.": 0.5, "layers\\.": 0.25 });
  const argv = [
    "--decay-on",
    "weights",
    "--learning-rate-factors",
    factors,
    "--learning-rate",
    "0.1",
    "--weight-decay",
    "0.3",
  ];
  const { groups } = optimizerOf(model, await configOf(...argv));
  const seen = groups.flatMap(({ parameters, learningRate, weightDecay }) => {
    return parameters.map(({ fqn }) => [fqn, learningRate, weightDecay] as const);
  });
  assert.equal(seen.length, [...model.parameters()].length);
  for (const [fqn, learningRate, weightDecay] of seen) {
    assert.equal(learningRate, fqn.includes("layers.0.") ? 0.05 : fqn.includes("layers.") ? 0.025 : 0.1, fqn);
    assert.equal(weightDecay, /bias|norm/.test(fqn) ? 0 : 0.3, fqn);
  }
});

test("optimizerOf() refuses settings that mean nothing, and patterns that fit nothing", async () => {
  for (
    const [argv, message] of [
      [["--optimizer", "adafactor", "--beta2", "0.9"], /beta2: expected nothing, as 'adafactor' has none, got 0\.9/],
      [["--momentum", "0.9"], /momentum: expected nothing, as 'adamw' has none/],
      [["--learning-rate-factors", '{"lm_heed": 2}'], /learningRateFactors: .*'lm_heed', which fits none/],
      [["--learning-rate-factors", '{"(": 2}'], /learningRateFactors: expected a regular expression/],
    ] as const
  ) {
    const config = await configOf(...argv);
    assert.throws(() => optimizerOf(model, config), (error) => {
      assert.ok(error instanceof ConfigError);
      assert.match(error.message, message);
      return true;
    });
  }
});

test("scheduleOf() gives each schedule its keys", async () => {
  const steps = ["--steps", "100", "--warmup-steps", "10"];
  const texts = await Promise.all(
    [
      ["--schedule", "cosine", "--min-lr-rate", "0.1"],
      ["--schedule", "cosine_with_restarts", "--schedule-cycles", "3"],
      ["--schedule", "polynomial", "--schedule-power", "2"],
      ["--schedule", "inverse_sqrt"],
      ["--schedule", "warmup_stable_decay"],
      ["--schedule", "warmup_stable_decay", "--decay-steps", "30"],
    ].map(async (argv) => scheduleOf(await configOf(...steps, ...argv)).text),
  );
  assert.equal(at(texts, 0, "text"), "cosine over 100 steps, 10 of them to warm up, to 0.1");
  assert.deepEqual(texts.slice(1).map((text) => text.replace(" over 100 steps, 10 of them to warm up, to 0", "")), [
    "cosine_with_restarts (cycles 3)",
    "polynomial (power 2)",
    "inverse_sqrt (timescale 10)",
    "warmup_stable_decay (10 steps to decay, cosine)",
    "warmup_stable_decay (30 steps to decay, cosine)",
  ]);
});

test("scheduleOf() gives a run that is shorter than its warm-up the rates of the warm-up's first steps", async () => {
  for (const name of SCHEDULE_NAMES) {
    const argv = ["--schedule", name, "--steps", "4", "--warmup-steps", "100"];
    const { factorAt } = scheduleOf(await configOf(...argv));
    assert.deepEqual([1, 2, 3, 4].map((step) => factorAt(device.math, step)), [0.01, 0.02, 0.03, 0.04], name);
  }
});
