/**
 * The configuration mechanism: order of sources, every kind of problem with its place, help text and JSON schema.
 *
 * @module
 */

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { test } from "node:test";
import { z } from "zod";
import { helpAsked } from "../../src/config/flags.ts";
import { configHelp, resolveConfig } from "../../src/config/resolve.ts";
import { type Section, section } from "../../src/config/section.ts";
import { ArgumentError, ConfigError } from "../../src/errors.ts";

interface DataConfig {
  readonly data: readonly string[];
  readonly sequenceLength: number;
}

const dataSection: Section<DataConfig> = section(
  "data",
  z.strictObject({
    data: z.array(z.string()).describe("Text and JSONL files").default([]),
    sequenceLength: z.int().positive().default(256).describe("Tokens a sample"),
  }),
);

const trainSection = section(
  "training",
  z.strictObject({
    steps: z.int().positive().default(100).describe("Optimizer steps"),
    learningRate: z.number().gt(0).max(1).default(3e-4).describe("Peak learning rate"),
    precision: z.enum(["float32", "bfloat16"]).default("float32").describe("Compute dtype"),
    betas: z.array(z.number()).length(2).default([0.9, 0.95]).describe("Adam's decay rates"),
    resume: z.union([z.literal("auto"), z.int()]).optional().describe("Step to go on from"),
    compile: z.boolean().default(true).describe("Compile the model"),
    out: z.string().describe("Output directory"),
    hiddenSize: z.int().default(64).describe("Width"),
    headDims: z.array(z.int()).default([]).describe("Dims of the heads"),
  }).refine((value) => value.steps >= 1 || value.resume === undefined, { message: "steps after a resume" }),
);

const sections = [dataSection, trainSection] as const;

async function problemsFor(argv: readonly string[], fileText?: string): Promise<string[]> {
  try {
    await withFile(fileText, (file) => resolveConfig(sections, { argv, ...(file === undefined ? {} : { file }) }));
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.problems.map(({ path, expected, got, where }) =>
      `${where?.replace(/^.*\//, "") ?? "-"} | ${path} | ${expected} | ${got}`
    );
  }
  return [];
}

async function withFile<Result>(
  text: string | undefined,
  use: (file: string | undefined) => Promise<Result>,
): Promise<Result> {
  if (text === undefined) return await use(undefined);
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-config-`);
  try {
    writeFileSync(`${folder}/run.yaml`, text);
    return await use(`${folder}/run.yaml`);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test("resolveConfig() lets flags win over the file and the file over defaults", async () => {
  const config = await withFile(
    "steps: 5\nlearning_rate: 1e-3\nhidden-size: 32\ndata: [a.txt]\nout: here # a remark\n",
    (file) =>
      resolveConfig(sections, {
        argv: ["--steps", "7", "--data=b.txt", "--data", "c.txt", "--head_dims", "8,16", "--no-compile"],
        ...(file === undefined ? {} : { file }),
      }),
  );
  assert.deepEqual(config, {
    data: ["b.txt", "c.txt"],
    sequenceLength: 256,
    steps: 7,
    learningRate: 1e-3,
    precision: "float32",
    betas: [0.9, 0.95],
    compile: false,
    out: "here",
    hiddenSize: 32,
    headDims: [8, 16],
  });
  const steps: number = config.steps;
  const data: readonly string[] = config.data;
  // @ts-expect-error the merged type knows each key
  const wrong: string = config.sequenceLength;
  assert.deepEqual([steps, data.length, wrong], [7, 2, 256]);
});

test("resolveConfig() reads flags of every type", async () => {
  const argv = "--out=x --learning_rate 1e-4 --betas 0.8,0.9 --resume auto --compile=false --precision bfloat16";
  const config = await resolveConfig(sections, { argv: argv.split(" ") });
  assert.equal(config.learningRate, 1e-4);
  assert.deepEqual(config.betas, [0.8, 0.9]);
  assert.equal(config.resume, "auto");
  assert.equal(config.compile, false);
  assert.equal(config.precision, "bfloat16");
  assert.equal((await resolveConfig(sections, { argv: ["--out", "x", "--resume", "50"] })).resume, 50);
  assert.equal((await resolveConfig(sections, { argv: ["--out", "1", "--out", "2"] })).out, "2");
});

test("resolveConfig() keeps blanks and commas of texts, and takes numbers apart at commas", async () => {
  const argv = ["--out", " x ", "--data", " a, b\n", "--data", "", "--betas", " 0.8 , 0.9"];
  const { out, data, betas } = await resolveConfig(sections, { argv });
  assert.deepEqual({ out, data, betas }, { out: " x ", data: [" a, b\n", ""], betas: [0.8, 0.9] });
});

test("resolveConfig() freezes what it returns, all the way down", async () => {
  const config = await resolveConfig(sections, { argv: ["--out", "x"] });
  assert.ok(Object.isFrozen(config));
  assert.ok(Object.isFrozen(config.headDims));
});

test("resolveConfig() names the nearest flag for an unknown one", async () => {
  assert.deepEqual(await problemsFor(["--out=x", "--learning-rte", "1e-3", "--no-compil"]), [
    "- | --learning-rte | a known flag | '--learning-rte'. Did you mean '--learning-rate'?",
    "- | --no-compil | a known flag | '--no-compil'. Did you mean '--no-compile'?",
  ]);
  assert.deepEqual(await problemsFor(["--out=x", "--zzz"]), ["- | --zzz | a known flag | '--zzz'"]);
});

test("resolveConfig() names the nearest key and its place for an unknown one", async () => {
  assert.deepEqual(await problemsFor(["--out=x"], "steps: 3\nlerning_rate: 1\nhiddensize: 3\n"), [
    "run.yaml:2:1 | lerning_rate | a known key | 'lerning_rate'. Did you mean 'learningRate'?",
    "run.yaml:3:1 | hiddensize | a known key | 'hiddensize'. Did you mean 'hiddenSize'?",
  ]);
});

test("resolveConfig() reports all problems of file, flags and values at once", async () => {
  const problems = await problemsFor(
    ["--steps", "many", "--precision=bfloat61", "--data", "--compile=perhaps", "stray"],
    "learningRate: 3\nbetas: [0.9]\nsequenceLength: 1.5\nresume: never\n",
  );
  assert.deepEqual(problems, [
    "- | --data | a value <text> (--data=--compile=perhaps, if it begins with a dash) | '--compile=perhaps'",
    "- | stray | a flag | 'stray'",
    "run.yaml:3:17 | sequenceLength | an integer | 1.5",
    "- | --steps | a number | 'many'",
    "run.yaml:1:15 | learningRate | a number <= 1 | 3",
    "- | --precision | 'float32' or 'bfloat16' | 'bfloat61'. Did you mean 'bfloat16'?",
    "run.yaml:2:8 | betas | a list of >= 2 items | [0.9]",
    "run.yaml:4:9 | resume | 'auto' or a number | 'never'",
    "- | out | a text | nothing. Set '--out', or 'out' in the file of '--config'",
  ]);
});

test("resolveConfig() gives the place of a wrong element and of a wrong value", async () => {
  assert.deepEqual(await problemsFor(["--out=x"], "data:\n  - a\n  - 3\nhiddenSize: wide\n"), [
    "run.yaml:3:5 | data.1 | a text | 3",
    "run.yaml:4:13 | hiddenSize | a number | 'wide'",
  ]);
});

test("resolveConfig() refuses a flag without value, and a switch with a wrong one", async () => {
  assert.deepEqual(await problemsFor(["--compile=perhaps", "--out"]), [
    "- | --compile | no value, or true or false | 'perhaps'",
    "- | --out | a value <text> | nothing",
    "- | out | a text | nothing. Set '--out', or 'out' in the file of '--config'",
  ]);
});

test("resolveConfig() takes negative numbers as values, not as flags", async () => {
  assert.deepEqual(await problemsFor(["--out=x", "--learning-rate", "-1e-3"]), [
    "- | --learning-rate | a number > 0 | -0.001",
  ]);
});

test("resolveConfig() reports syntax errors, repeated keys and files that hold no keys", async () => {
  const [syntax] = await problemsFor(["--out=x"], "steps: [1\nx: }\n");
  assert.match(syntax ?? "", /^run\.yaml:\d+:\d+ \| syntax \| YAML or JSON \| /);
  assert.deepEqual(await problemsFor(["--out=x"], "learning_rate: 0.1\nlearningRate: 0.2\n"), [
    "run.yaml:2:1 | learningRate | each key once | 'learningRate' again",
  ]);
  assert.deepEqual(await problemsFor(["--out=x"], "- 1\n"), ["run.yaml:1:1 | file | keys and values | [1]"]);
  assert.deepEqual(await problemsFor(["--out=x"], "# nothing but a remark\n"), []);
});

test("resolveConfig() reads JSON, and the file named by --config from the given folder", async () => {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-config-`);
  try {
    writeFileSync(`${folder}/run.json`, '{\n\t"$schema": "x",\n\t"steps": 9,\n\t"out": "o"\n}\n');
    const config = await resolveConfig(sections, { argv: ["--config", "run.json"], cwd: folder });
    assert.equal(config.steps, 9);
    await assert.rejects(
      resolveConfig(sections, { argv: ["--config=gone.yaml", "--out=x"], cwd: folder }),
      /--config: expected a readable file, got Cannot read '.*gone\.yaml'/,
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("resolveConfig() refuses two sections that declare one flag", async () => {
  const again = section("more", z.strictObject({ steps: z.int().default(1).describe("Again") }));
  await assert.rejects(
    resolveConfig([trainSection, again]),
    (error) =>
      error instanceof ArgumentError && /'--steps' is declared by 'training' and again by 'more'/.test(error.message),
  );
});

test("configHelp() shows name, type, default and description of every key by section", async () => {
  const help = await configHelp(sections, "train.ts [flags]");
  assert.match(help, /^Usage: train\.ts \[flags\]\n\ndata:\n/);
  assert.match(help, /--data <text> \.\.\. +Text and JSONL files\n/);
  assert.match(help, /--learning-rate <number> +Peak learning rate \(default: 0\.0003\)/);
  assert.match(help, /--precision <float32\|bfloat16> +Compute dtype \(default: float32\)/);
  assert.match(help, /--betas <number> \.\.\. +Adam's decay rates \(default: \[0\.9,0\.95\]\)/);
  assert.match(help, /--resume <auto\|int> +Step to go on from/);
  assert.match(help, /--\[no-\]compile +Compile the model \(default: true\)\n/);
  assert.match(help, /--hidden-size <int> +Width \(default: 64\)/);
  assert.ok(help.split("\n").every((line) => line.length <= 100));
});

test("helpAsked() finds --help before a --", () => {
  assert.equal(helpAsked(["--steps", "3", "--help"]), true);
  assert.equal(helpAsked(["-h"]), true);
  assert.equal(helpAsked(["--", "--help"]), false);
});
