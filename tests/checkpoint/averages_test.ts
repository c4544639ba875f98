/** Averages of weights that a checkpoint has beside these: loaded, evaluated, merged and exported in their place. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Logger, resolveConfig, runTraining, TRAIN_SECTIONS } from "../../doors/config.ts";
import { AdamW, launch, openModel } from "../../mod.ts";
import { loadCheckpoint } from "../../doors/checkpoint.ts";
import { evalModel } from "../../src/cli/eval.ts";
import { exportModel } from "../../src/cli/export.ts";
import { merge } from "../../src/cli/merge.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const fixture = (name: string): string => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
const data = folder.write("text.txt", "To be, or not to be, that is the question. ".repeat(40));

/** Trains three steps, with a checkpoint behind the last. */
async function trains(out: string, ...more: readonly string[]): Promise<void> {
  const argv = [
    ...["--model", fixture("preference/model"), "--tokenizer", fixture("chat/bytes"), "--data", data, "--steps", "3"],
    ...[
      "--sequence-length",
      "32",
      "--global-batch",
      "2",
      "--save-every",
      "3",
      "--sample-tokens",
      "0",
      "--cpu-math",
      "wasm",
    ],
    ...["--learning-rate", "0.01", "--cache", folder.file("cache"), "--out", folder.file(out), ...more],
  ];
  const config = await resolveConfig(TRAIN_SECTIONS, { argv });
  const log = new Logger({ sink: () => {} });
  await runTraining(config, { log, output: { line: () => undefined, status: undefined } });
}

before(async () => {
  await trains("run", "--ema-decay", "0.5");
  await trains("plain");
});

const weightsIn = (name: string): string => readFileSync(folder.file(`${name}/model.safetensors`)).toString("base64");
const saved = (): string => folder.file("run/checkpoint-3");

/** The values of all parameters of a model that was loaded. */
async function valuesOf(options: { readonly averages?: boolean; readonly broadcastFromRank0?: boolean }) {
  await using run = await launch({ cpuMath: "wasm" });
  const model = await openModel(run, saved(), options);
  await model.load();
  return [...model.namedParameters()].map(([name, parameter]) => [name, [...parameter.toArray()]]);
}

test("merge and export write a checkpoint's averages, which are what its run saved as its model", async () => {
  assert.equal(await merge([saved(), folder.file("merged"), "--averages"]), 0);
  assert.equal(weightsIn("merged"), weightsIn("run/model"));
  assert.equal(await merge([saved(), folder.file("weights")]), 0);
  assert.notEqual(weightsIn("weights"), weightsIn("run/model"));
  assert.equal(await exportModel([saved(), "--out", folder.file("exported"), "--format", "hf", "--averages"]), 0);
  assert.equal(weightsIn("exported"), weightsIn("run/model"));
  const gguf = async (from: string, name: string, ...more: readonly string[]): Promise<string> => {
    const to = folder.file(name);
    assert.equal(await exportModel([from, "--out", to, "--tokenizer", "none", ...more]), 0);
    return readFileSync(to).toString("base64");
  };
  assert.equal(await gguf(saved(), "a.gguf", "--averages"), await gguf(folder.file("run/model"), "b.gguf"));
});

test("openModel() and eval take averages on request, read by each rank or sent by rank 0", async () => {
  const averages = await valuesOf({ averages: true });
  assert.notDeepEqual(averages, await valuesOf({}));
  assert.deepEqual(await valuesOf({ averages: true, broadcastFromRank0: true }), averages);
  const lossOf = async (model: string, ...more: readonly string[]): Promise<number> => {
    const printed: string[] = [];
    const flags = [
      "--data",
      data,
      "--sequence-length",
      "32",
      "--cpu-math",
      "wasm",
      "--json",
      "--tokenizer",
      fixture("chat/bytes"),
    ];
    await evalModel([model, ...flags, ...more], (text) => void printed.push(text));
    return JSON.parse(printed.join("")).sets[0].loss;
  };
  assert.equal(await lossOf(saved(), "--averages"), await lossOf(folder.file("run/model")));
  assert.notEqual(await lossOf(saved()), await lossOf(saved(), "--averages"));
});

test("averages are refused where there are none, and with the states of an optimizer", async () => {
  const none = folder.file("plain/checkpoint-3");
  const cases: readonly (readonly [act: () => Promise<unknown>, expected: RegExp])[] = [
    [() => merge([none, folder.file("x"), "--averages"]), /It has no averages of the weights, .*emaDecay/],
    [
      () => merge([folder.file("run/model"), folder.file("x"), "--averages"]),
      /There are no averages beside its weights/,
    ],
    [
      () => evalModel([folder.file("run/model"), "--data", data, "--averages"]),
      /There are no averages beside its weights/,
    ],
    [
      () =>
        merge([folder.file("run/model"), folder.file("x"), "--averages", "--adapter", fixture("preference/adapter")]),
      /averages: expected nothing beside --adapter/,
    ],
  ];
  for (const [act, expected] of cases) await assert.rejects(act, expected);
  await using run = await launch({ cpuMath: "wasm" });
  await assert.rejects(openModel(run, { model_type: "llama" }, { averages: true }), /There are no averages/);
  const model = await openModel(run, none, { averages: true });
  await assert.rejects(model.load(), /It has no averages of the weights/);
  const other = await openModel(run, saved());
  await other.load();
  const optimizer = new AdamW(other.parameters());
  const { group } = run;
  const loading = loadCheckpoint({ directory: saved(), from: saved(), model: other, optimizer, group, averages: true });
  await assert.rejects(loading, /Cannot load averages in place of weights with the states of an optimizer/);
});
