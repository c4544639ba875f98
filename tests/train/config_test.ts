/** The settings, and the errors of wrong values. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { configHelp, resolveConfig } from "../../src/config/resolve.ts";
import { readSections } from "../../src/config/schema.ts";
import { DEVICES } from "../../src/device/registry.ts";
import { CheckpointError, ConfigError, FileError } from "../../src/errors.ts";
import { TRAIN_SECTIONS } from "../../src/train/config.ts";
import { readHfConfig } from "../../src/train/open_model.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const keys = [
  ...["data", "eval-data", "text-field", "tokenizer", "eos-token", "sequence-length", "packing", "cache"],
  ...["streaming"],
  ...["chat-template", "loss-on", "skip-bad-rows"],
  ...["model", "broadcast-from-rank0"],
  ...["adapter", "lora-r", "lora-alpha", "lora-dropout", "lora-target-modules", "lora-exclude-modules"],
  ...["lora-modules-to-save", "use-rslora", "frozen-dtype"],
  ...["load-in-4bit", "load-in-8bit", "bnb-4bit-quant-type", "bnb-4bit-use-double-quant"],
  ...["preference", "beta", "loss-type", "label-smoothing", "desirable-weight", "undesirable-weight"],
  ...["precompute-ref-log-probs"],
  ...["teacher", "distill-top-k", "distill-beta", "distill-temperature", "distill-alpha"],
  ...[
    "strategy",
    "fsdp-plan",
    "mesh",
    "reshard-after-forward",
    "backward-prefetch",
    "forward-prefetch",
    "cpu-offload",
    "offload-states",
  ],
  ...["activation-checkpointing", "activation-checkpointing-every", "gradient-checkpointing"],
  ...["precision", "cpu-math", "threads", "cuda-graphs", "attention"],
  ...[
    "tp-size",
    "tp-plan",
    "enable-sequence-parallel",
    "fsdp-size",
    "dp-replicate-size",
    "cp-size",
    "cp-comm-strategy",
    "ep-size",
    "pp-size",
    "pp-schedule",
    "pp-stages-per-rank",
    "pp-split",
    "pp-layers",
    "check-replicas",
  ],
  ...["accelerate-config", "fsdp", "fsdp-config", "distributed-config"],
  ...["device", "memory-bytes", "staging-bytes"],
  ...["timeout-seconds", "join-timeout-seconds", "report-seconds"],
  ...["steps", "stop-after", "global-batch", "micro-batches", "learning-rate", "schedule", "warmup-steps"],
  ...["weight-decay", "beta1", "beta2", "max-grad-norm", "neftune-noise-alpha", "seed"],
  ...["optimizer", "momentum", "adjust-lr", "decay-on", "learning-rate-factors", "min-lr-rate"],
  ...["schedule-cycles", "schedule-power", "decay-steps", "ema-decay", "ema-start"],
  ...["eval-every", "eval-strategy", "load-best-model-at-end", "metric-for-best-model", "greater-is-better"],
  ...["early-stopping-patience", "early-stopping-threshold"],
  ...[
    "out",
    "resume",
    "overwrite",
    "set-aside",
    "save-every",
    "keep-last",
    "async-save",
    "state-dict-type",
    "log-every",
    "report-to",
    "run-name",
    "report",
    "live",
    "live-port",
    "sample-tokens",
    "trace",
    "prompt",
  ],
  ...["config", "help"],
];

test("configHelp() lists every key of a training run, each with a description", async () => {
  const help = await configHelp(TRAIN_SECTIONS, "train.ts [flags]");
  assert.deepEqual([...help.matchAll(/^ {2}(?:-h, )?--(?:\[no-\])?([\w-]+)/gm)].map((match) => match[1]), keys);
  assert.deepEqual(
    [...help.matchAll(/^(\w+):$/gm)].map((match) => match[1]),
    [
      "data",
      "model",
      "adapter",
      "preference",
      "distillation",
      "parallelism",
      "axes",
      "accelerate",
      "host",
      "training",
      "optimizer",
      "evaluation",
      "output",
      "general",
    ],
  );
  for (const line of help.split("\n")) assert.ok(line.length <= 100, line);
  for (const { schema } of TRAIN_SECTIONS) {
    for (const [key, value] of Object.entries(schema.shape)) assert.ok(value.description, key);
  }
});

test("resolveConfig() of no flags trains the default model", async () => {
  const config = await resolveConfig(TRAIN_SECTIONS);
  const { steps, strategy, precision, saveEvery, resume, memoryBytes } = config;
  assert.deepEqual(
    { steps, strategy, precision, saveEvery, resume, memoryBytes },
    { steps: 200, strategy: "fsdp", precision: "float32", saveEvery: 0, resume: undefined, memoryBytes: undefined },
  );
});

const wrong: readonly (readonly [readonly string[], RegExp])[] = [
  [["--optimizer", "adam"], /--optimizer: expected .*adamw8bit.*lion_32bit/],
  [["--min-lr-rate", "2"], /--min-lr-rate/],
  [["--optim", "lion"], /--optimizer/],
  [["--lr-scheduler-type", "linear"], /--schedule/],
  [["--steps", "0"], /--steps: expected .*got 0/],
  [["--steps", "1.5"], /--steps: expected .*got 1\.5/],
  [["--lora-r", "0"], /--lora-r: expected .*got 0/],
  [["--learning-rate", "-1"], /--learning-rate: expected .*got -1/],
  [["--learning-rate", "fast"], /--learning-rate: expected .*got 'fast'/],
  [["--mesh", "2"], /--mesh: expected shard, hybrid, or replicas x ranks such as 2x4, got '2'/],
  [["--fsdp-plan", "automatic"], /--fsdp-plan: expected 'auto' or 'transformer' or 'none'.*, got 'automatic'/],
  [["--fsdp-plan", '{"mode":"size"}'], /--fsdp-plan.*/],
  ...["out", "resume", "model", "data", "trace"].map((key) =>
    [[`--${key}`, ""], new RegExp(`--${key}: expected a path, got ''`)] as const
  ),
  [["--loss-on", "answers"], /--loss-on: expected .assistant. or .completion. or .all., got .answers./],
  [["--chat-template", ""], /--chat-template: expected a path, got ..$/],
  [["--beta2", "1"], /--beta2: expected .*got 1/],
  [["--neftune-noise-alpha", "0"], /--neftune-noise-alpha: expected .*got 0/],
  [["--ema-decay", "1"], /--ema-decay: expected .*got 1/],
  [["--ema-start", "-1"], /--ema-start: expected .*got -1/],
  [["--precision", "float64"], /--precision: expected .*bfloat16.*got 'float64'/],
  [["--cpu-math", "mkl"], /--cpu-math: expected .*native.*got 'mkl'/],
  [["--strategy", "zero"], /--strategy: expected .*fsdp.*got 'zero'/],
  [["--device", "gpu"], new RegExp(`--device: expected ${DEVICES.join(", ")}, or one card such as cuda:0, got 'gpu'`)],
  [["--cuda-graphs=twice"], /--cuda-graphs: expected .*got 'twice'/],
  [["--packing", "bdf"], /--packing: expected 'none' or 'wrapped' or 'bfd' or 'bfd-split'.*, got 'bdf'/],
  [["--attention", "flash"], /--attention: expected .*cudnn.*got 'flash'/],
  [["--memory-bytes", "1000"], /--memory-bytes: expected .*16777216.*got 1000/],
  [["--timeout-seconds", "0"], /--timeout-seconds: expected .*got 0/],
  [["--learnin-rate", "1"], /'--learnin-rate'\. Did you mean '--learning-rate'\?/],
  [["--warmup_step", "1"], /Did you mean '--warmup-steps'\?/],
  [["train.txt"], /expected a flag, got 'train\.txt'/],
  [["--lr", "1e-3"], /--lr: expected a known flag, got '--lr'\. Here it is '--learning-rate': Peak learning rate/],
  [
    ["--batch_size=8"],
    /got '--batch_size'\. Here it is '--global-batch': Samples of a step, over all ranks and micro-/,
  ],
  [["--seq-len", "64"], /got '--seq-len'\. Here it is '--sequence-length': Tokens of a sample/],
  [["--epochs", "3"], /'--steps': Optimizer steps in total.*; the log prints the steps per epoch/],
  [
    ["--data", "a.md", "b.md", "c.md", "--steps", "3"],
    /^Configuration has 1 problem:\n {2}--data: expected one value, got 'a\.md' and 2 more\. If the shell made them of a pattern, quote the pattern: --data 'texts\/\*\.md'; else repeat --data before each$/,
  ],
];

test("every other name of a key is answered with the key, as a flag and in a file", async () => {
  using folder = temporaryDirectory();
  const others = (await readSections(TRAIN_SECTIONS)).flatMap(({ keys }) => keys).flatMap(({ name, flag }) =>
    (flag.otherNames ?? []).map((other) => ({ other, flag: flag.name, key: name }))
  );
  assert.ok(others.length > 20);
  assert.equal(new Set(others.map(({ other }) => other)).size, others.length, "one name stands for two keys");
  const file = folder.write("run.yaml", others.map(({ other }) => `${other.replaceAll("-", "_")}: 1`).join("\n"));
  const argv = ["--config", file, ...others.map(({ other }) => `--${other}=1`)];
  await assert.rejects(resolveConfig(TRAIN_SECTIONS, { argv }), (error) => {
    assert.ok(error instanceof ConfigError);
    const said = Object.fromEntries(error.problems.map(({ path, got }) => [path, got]));
    for (const { other, flag, key } of others) {
      const inFile = other.replaceAll("-", "_");
      assert.ok(said[inFile]?.startsWith(`'${inFile}'. Here it is '${key}': `), said[inFile]);
      assert.ok(said[`--${other}`]?.startsWith(`'--${other}'. Here it is '--${flag}': `), said[`--${other}`]);
    }
    return true;
  });
});

test("resolveConfig() takes a plan as JSON, and from a file", async () => {
  using folder = temporaryDirectory();
  const plan = { mode: "manual", modules: { "model.layers.*": ["keep_full_weight"] } };
  const file = folder.write(
    "run.yaml",
    'fsdp_plan:\n  mode: manual\n  modules:\n    "model.layers.*": [keep_full_weight]\n',
  );
  for (const argv of [["--fsdp-plan", JSON.stringify(plan)], ["--config", file]]) {
    assert.deepEqual((await resolveConfig(TRAIN_SECTIONS, { argv })).fsdpPlan, plan);
  }
  assert.match(await configHelp(TRAIN_SECTIONS, ""), /--fsdp-plan <auto\|transformer\|none>/);
});

test("resolveConfig() of a file takes one text for a list, and tells that keys are not nested", async () => {
  using folder = temporaryDirectory();
  const file = folder.write("run.yaml", "data: src\n");
  assert.deepEqual((await resolveConfig(TRAIN_SECTIONS, { argv: ["--config", file] })).data, ["src"]);
  folder.write("run.yaml", "training:\n  steps: 10\ndata: 3\n");
  await assert.rejects(
    resolveConfig(TRAIN_SECTIONS, { argv: ["--config", file] }),
    /run\.yaml:1:1: training: expected a known key, got 'training'\. Keys are not nested: move those below it out of it\n.*run\.yaml:3:7: data\.0: expected a text, got 3$/,
  );
});

for (const [argv, said] of wrong) {
  test(`resolveConfig() refuses '${argv.join(" ")}'`, async () => {
    await assert.rejects(resolveConfig(TRAIN_SECTIONS, { argv }), (error) => {
      assert.ok(error instanceof ConfigError);
      assert.match(error.message, said);
      return true;
    });
  });
}

test("resolveConfig() of a file names the key that was probably meant, with its place", async () => {
  using folder = temporaryDirectory();
  const file = folder.write("run.yaml", "steps: 10\nlearningRat: 0.1\nglobal_batch: none\n");
  await assert.rejects(resolveConfig(TRAIN_SECTIONS, { argv: ["--config", file] }), (error) => {
    assert.ok(error instanceof ConfigError);
    assert.match(error.message, /run\.yaml:2:1: .*learningRat.*learningRate/);
    assert.match(error.message, /run\.yaml:3:\d+: .*expected .*got 'none'/);
    return error.problems.length === 2;
  });
});

test("readHfConfig() names the file that is missing, no JSON, or no object", async () => {
  using folder = temporaryDirectory();
  await assert.rejects(
    readHfConfig(folder.path),
    (error) => error instanceof FileError && error.path === folder.file("config.json"),
  );
  for (const text of ["{", "[]", "", '{"a": 1} x']) {
    folder.write("config.json", text);
    await assert.rejects(readHfConfig(folder.path), (error) => {
      return error instanceof CheckpointError && error.message.includes(folder.file("config.json"));
    });
  }
  folder.write("config.json", '{"model_type": "llama", "hidden_size": 8}');
  assert.deepEqual(await readHfConfig(folder.path), { model_type: "llama", hidden_size: 8 });
  folder.write("run/model/config.json", "{}");
  await assert.rejects(readHfConfig(folder.file("run")), /the model of the run is '.*\/run\/model'$/);
});
