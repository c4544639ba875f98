/** NEFTune and averages of weights over ranks: the same bits however samples and shards are divided; in runs, and what they refuse. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { launch, openModel } from "../../mod.ts";
import { evalModel } from "../../src/cli/eval.ts";
import { adapt, adapterSection } from "../../src/train/adapter_config.ts";
import { axesSection } from "../../src/train/axes_config.ts";
import { dataSection, parallelSection, type StepConfig, trainSection } from "../../src/train/config.ts";
import { memoryPeak } from "../../src/train/dry_run.ts";
import { emptyBatch, estimateStep } from "../../src/train/estimate.ts";
import { optimizerOf } from "../../src/train/optimizer.ts";
import { optimizerSection } from "../../src/train/optimizer_config.ts";
import { outputSection } from "../../src/train/output_config.ts";
import { parallelize } from "../../src/train/parallelize.ts";
import { trainStep } from "../../src/train/step.ts";
import { longTest, onlyInAll, sharedTest } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { fineTune, type FineTuningOrders, type FineTuningReport } from "./fine_tuning_ranks.ts";
import { SIZES } from "./loop_ranks.ts";
import { keepRanks } from "./kept_ranks.ts";
import { type Ended, flagsIn, metricLines } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

const TIMEOUT = { timeout: 120_000 };
const README = fileURLToPath(new URL("../../README.md", import.meta.url));

function succeeds(ended: Ended): Ended {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
  return ended;
}

/** What each of some ranks found; all found the same. */
async function trained(size: number, data: FineTuningOrders): Promise<FineTuningReport> {
  const [first, ...others] = await valuesOf<FineTuningReport>(await world(size, fineTune, { data }));
  assert.ok(first !== undefined);
  for (const other of others) assert.deepEqual(other, first);
  return first;
}

const worlds: readonly (readonly [size: number, mode: FineTuningOrders["mode"]])[] = [
  [2, "fsdp"],
  [2, "ddp"],
  ...onlyInAll<readonly [number, FineTuningOrders["mode"]]>([[4, "fsdp"], [4, "ddp"]]),
];

for (const packing of onlyInAll(["bfd", "wrapped", "none"] as const)) {
  sharedTest(
    `noise and averages of rows packed by '${packing}' have the same bits on any number of ranks`,
    TIMEOUT,
    async () => {
      using folder = temporaryDirectory();
      const file = folder.write("texts.txt", readFileSync(README, "utf8").slice(0, 1500));
      const rows = folder.write(
        "texts.jsonl",
        readFileSync(file, "utf8").split("\n").filter((line) => line !== "").map((text) => JSON.stringify({ text }))
          .join("\n"),
      );
      const orders = { file: rows, packing, neftuneNoiseAlpha: 5, emaDecay: 0.5 };
      // Gradients are summed in the order of ranks, as those of micro-batches are in theirs.
      for (const [size, mode] of worlds) {
        const alone = await trained(1, { ...orders, mode: "fsdp", microBatches: size });
        assert.deepEqual(await trained(size, { ...orders, mode, microBatches: 1 }), alone, `${mode} on ${size}`);
      }
      for (const size of onlyInAll([2])) {
        const shards = await trained(size, { ...orders, mode: "fsdp", microBatches: 2 });
        const copies = await trained(size, { ...orders, mode: "ddp", microBatches: 2 });
        assert.deepEqual(shards, copies, "with two micro-batches on each rank");
      }
      const [one, quiet, plain] = [
        await trained(1, { ...orders, mode: "plain", microBatches: 2 }),
        await trained(1, { file: rows, packing, mode: "plain", microBatches: 2, emaDecay: 0.5 }),
        await trained(1, { file: rows, packing, mode: "plain", microBatches: 2, neftuneNoiseAlpha: 5 }),
      ];
      assert.notEqual(one.losses[0], quiet.losses[0], "noise changes the loss");
      assert.deepEqual([plain.losses, plain.weights], [one.losses, one.weights], "averages change no weight");
      assert.notDeepEqual(one.averages, one.weights);
      const [before, averaged, after] = one.evaluated;
      assert.equal(after, before);
      assert.notEqual(averaged, before);
    },
  );
}

/** Flags of a run with noise and averages. */
function flagsOf(folder: TemporaryDirectory, out: string, ...more: readonly string[]): string[] {
  const held = folder.write("held.txt", "the shard of rank number 7 is tensor\n".repeat(6));
  const fine = [
    "--neftune-noise-alpha",
    "5",
    "--ema-decay",
    "0.6",
    "--eval-data",
    held,
    "--steps",
    "6",
    "--save-every",
    "0",
  ];
  return flagsIn(folder, "vocab=257", "tokens=bytes", ...fine, "--eval-every", "3", "--out", folder.file(out), ...more);
}

/** The figures of a run's steps and evaluations, without those of the machine. */
function figuresOf(folder: TemporaryDirectory, out: string): readonly Readonly<Record<string, number>>[] {
  return metricLines(folder, out).map((line) => {
    const { tokens_per_second: _speed, wall_time: _time, peak_bytes: _bytes, ...figures } = JSON.parse(line);
    return figures;
  });
}

/** The loss of the held-out text by a model of a run, in this process. */
async function lossOf(folder: TemporaryDirectory, model: string, ...more: readonly string[]): Promise<number> {
  const printed: string[] = [];
  const held = ["--data", folder.file("held.txt"), "--sequence-length", "16", "--cpu-math", "wasm", "--json"];
  await evalModel([folder.file(model), ...held, ...more], (text) => void printed.push(text));
  return JSON.parse(printed.join("")).sets[0].loss;
}

/** Flags without the average's. */
function withoutAverages(flags: readonly string[]): readonly string[] {
  return flags.filter((flag, i) => flag !== "--ema-decay" && flags[i - 1] !== "--ema-decay");
}

const weightsOf = (folder: TemporaryDirectory, out: string): string =>
  readFileSync(folder.file(`${out}/model/model.safetensors`)).toString("base64");

sharedTest(
  "a run with noise and averages resumes on other ranks to the same bits; its model has the averages",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const told = succeeds(await run(flagsOf(folder, "whole")));
    assert.match(told.stderr, /Evaluations and the saved model use the averaged weights \(emaDecay 0\.6\)/);
    const whole = figuresOf(folder, "whole");
    assert.deepEqual(whole.map(({ eval_loss }) => eval_loss === undefined), [true, true, false, true, true, false]);
    succeeds(await run(flagsOf(folder, "half", "--stop-after", "2")));
    succeeds(
      await run(flagsOf(folder, "half", "--resume", "auto", "--micro-batches", "2", "--save-every", "6"), { ranks: 1 }),
    );
    assert.deepEqual(figuresOf(folder, "half"), whole);
    assert.equal(weightsOf(folder, "half"), weightsOf(folder, "whole"));
    for (const strategy of onlyInAll(["ddp"])) {
      succeeds(await run(flagsOf(folder, "replicated", "--strategy", strategy, "--activation-checkpointing", "full")));
      assert.deepEqual(figuresOf(folder, "replicated"), whole);
      assert.equal(weightsOf(folder, "replicated"), weightsOf(folder, "whole"));
    }
    // What was evaluated at the end is what was saved, and not the weights of that step.
    assert.equal(await lossOf(folder, "whole/model"), whole.at(-1)?.["eval_loss"]);
    assert.notEqual(await lossOf(folder, "half/checkpoint-6"), whole.at(-1)?.["eval_loss"]);
    assert.equal(await lossOf(folder, "half/checkpoint-6", "--averages"), whole.at(-1)?.["eval_loss"]);
  },
);

longTest(
  "averages change nothing of a training, and are not taken from or left in a checkpoint unsaid",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    succeeds(await run(flagsOf(folder, "whole", "--save-every", "3")));
    const whole = figuresOf(folder, "whole");
    succeeds(await run(withoutAverages(flagsOf(folder, "weights", "--save-every", "3"))));
    const raw = figuresOf(folder, "weights");
    assert.deepEqual(
      raw.map(({ loss, grad_norm }) => [loss, grad_norm]),
      whole.map(({ loss, grad_norm }) => [loss, grad_norm]),
    );
    assert.notEqual(raw.at(-1)?.["eval_loss"], whole.at(-1)?.["eval_loss"]);
    assert.equal(await lossOf(folder, "whole/checkpoint-6"), raw.at(-1)?.["eval_loss"]);
    assert.notEqual(weightsOf(folder, "weights"), weightsOf(folder, "whole"));
    const from = (out: string): readonly string[] => ["--resume", folder.file(`${out}/checkpoint-3`)];
    const without = await run(withoutAverages(flagsOf(folder, "without", ...from("whole"))), { ranks: 1 });
    assert.equal(without.code, 1, without.stderr);
    assert.match(without.stderr, /It has averages of the weights, and this optimizer keeps none: set emaDecay/);
    const late = await run(flagsOf(folder, "late", ...from("weights")), { ranks: 1 });
    assert.equal(late.code, 1, late.stderr);
    assert.match(late.stderr, /It has no averages of the weights, which this optimizer keeps: go on without emaDecay/);
  },
);

/** All settings of a step, with their defaults. */
const DEFAULTS: StepConfig = {
  ...dataSection.schema.parse({}),
  ...adapterSection.schema.parse({}),
  ...parallelSection.schema.parse({}),
  ...axesSection.schema.parse({}),
  ...trainSection.schema.parse({}),
  ...optimizerSection.schema.parse({}),
  ...outputSection.schema.parse({}),
  ...{ sequenceLength: 12, globalBatch: 2, packing: "bfd" },
};

test("the dry run counts noise and averages to the byte", async () => {
  const peaks: number[] = [];
  for (const asked of [{}, { neftuneNoiseAlpha: 5 }, { emaDecay: 0.9 }, { emaDecay: 0.9, loraR: 2 }]) {
    const config: StepConfig = { ...DEFAULTS, ...asked };
    const { peakBytes, terms, numParameters } = await estimateStep(config, SIZES, { worldSize: 1, cpuMath: "wasm" });
    await using alone = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
    const { device, group, data } = alone;
    const model = await openModel(alone, SIZES);
    adapt(model, config, undefined);
    parallelize(model, alone, config);
    await model.load();
    const context = { device, group, data, model, optimizer: optimizerOf(model, config), maxGradNorm: 1 };
    trainStep(context, emptyBatch(config, 1), 1);
    device.allocator.resetPeak();
    trainStep(context, emptyBatch(config, 1), 2);
    const peak = memoryPeak(alone);
    assert.deepEqual([peak.peakBytes, peak.terms], [peakBytes, terms], JSON.stringify(asked));
    peaks.push(terms.optimizer);
    const trained = "loraR" in asked ? undefined : numParameters;
    if (asked.emaDecay !== undefined && trained !== undefined) {
      const more = terms.optimizer - (peaks[0] ?? NaN);
      assert.ok(more >= 4 * trained && more < 4 * trained + 64 * 4 * 4, `${more} bytes of ${trained} averages`);
    }
  }
  const [plain = NaN, noisy, averaged = NaN, adapter = NaN] = peaks;
  assert.equal(noisy, plain);
  assert.ok(adapter < averaged / 4, "only what is trained has averages");
});

test("settings of noise and averages that do not fit are refused", TIMEOUT, async () => {
  await using alone = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
  const model = await openModel(alone, SIZES);
  assert.throws(
    () => optimizerOf(model, { ...DEFAULTS, emaStart: 3 }),
    /emaStart: expected emaDecay to be set too, got 3 without it; set emaDecay, or remove emaStart/,
  );
  using folder = temporaryDirectory();
  const shared = await run(flagsIn(folder, "--cp-size", "2", "--neftune-noise-alpha", "5"));
  assert.equal(shared.code, 1, shared.stderr);
  assert.match(
    shared.stderr,
    /the noise on embeddings is drawn by places in a row, and a rank counts its own; leave neftuneNoiseAlpha out/,
  );
});

longTest(
  "the model of the best evaluation has the averages of that step, also with states beside the device",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const flags = (out: string, ...more: readonly string[]): string[] =>
      flagsOf(folder, out, "--load-best-model-at-end", "--greater-is-better", "--eval-every", "2", ...more);
    succeeds(await run(flags("best"))); // the first evaluation has the largest loss
    const [[best]] = [figuresOf(folder, "best").filter(({ eval_loss }) => eval_loss !== undefined)];
    assert.equal(best?.["step"], 2);
    const printed: string[] = [];
    const held = ["--data", folder.file("held.txt"), "--sequence-length", "16", "--cpu-math", "wasm", "--json"];
    await evalModel([folder.file("best/model"), ...held], (text) => void printed.push(text));
    assert.equal(JSON.parse(printed.join("")).sets[0].loss, best?.["eval_loss"]);
    const settings = [["--cpu-offload"], ["--cpu-offload", "--offload-states", folder.path], [
      "--async-save",
      "--save-every",
      "2",
    ]];
    for (const [i, more] of settings.entries()) {
      succeeds(await run(flags(`other${i}`, ...more)));
      assert.deepEqual(figuresOf(folder, `other${i}`), figuresOf(folder, "best"), more.join(" "));
      assert.equal(weightsOf(folder, `other${i}`), weightsOf(folder, "best"));
    }
  },
);
