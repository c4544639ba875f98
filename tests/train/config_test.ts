/** What can be set, and what is said about wrong values. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { configHelp, resolveConfig } from "../../src/config/resolve.ts";
import { CheckpointError, ConfigError, FileError } from "../../src/errors.ts";
import { TRAIN_SECTIONS } from "../../src/train/config.ts";
import { readHfConfig } from "../../src/train/open_model.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const keys = [
  ...["data", "text-field", "tokenizer", "sequence-length", "cache"],
  "model",
  ...["strategy", "no-reshard-after-forward", "precision", "cpu-math", "memory-bytes", "staging-bytes"],
  ...["timeout-seconds", "join-timeout-seconds", "report-seconds"],
  ...["steps", "stop-after", "global-batch", "micro-batches", "learning-rate", "schedule", "warmup-steps"],
  ...["weight-decay", "beta1", "beta2", "max-grad-norm", "seed"],
  ...["out", "resume", "overwrite", "save-every", "keep-last", "log-every", "sample-tokens", "prompt"],
  ...["config", "help"],
];

test("configHelp() lists every key of a training run, each with a description", async () => {
  const help = await configHelp(TRAIN_SECTIONS, "train.ts [flags]");
  assert.deepEqual([...help.matchAll(/^ {2}(?:-h, )?--([\w-]+)/gm)].map((match) => match[1]), keys);
  assert.deepEqual(
    [...help.matchAll(/^(\w+):$/gm)].map((match) => match[1]),
    ["data", "model", "parallelism", "host", "training", "output", "general"],
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
  [["--steps", "0"], /--steps: expected .*got 0/],
  [["--steps", "1.5"], /--steps: expected .*got 1\.5/],
  [["--learning-rate", "-1"], /--learning-rate: expected .*got -1/],
  [["--learning-rate", "fast"], /--learning-rate: expected .*got 'fast'/],
  [["--beta2", "1"], /--beta2: expected .*got 1/],
  [["--precision", "float16"], /--precision: expected .*bfloat16.*got 'float16'/],
  [["--cpu-math", "mkl"], /--cpu-math: expected .*onednn.*got 'mkl'/],
  [["--strategy", "zero"], /--strategy: expected .*fsdp.*got 'zero'/],
  [["--memory-bytes", "1000"], /--memory-bytes: expected .*16777216.*got 1000/],
  [["--timeout-seconds", "0"], /--timeout-seconds: expected .*got 0/],
  [["--learnin-rate", "1"], /'--learnin-rate'\. Did you mean '--learning-rate'\?/],
  [["--warmup_step", "1"], /Did you mean '--warmup-steps'\?/],
  [["train.txt"], /expected a flag, got 'train\.txt'/],
];

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
});
