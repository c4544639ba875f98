/** Parameter groups: rates of their own under a schedule, in steps and in checkpoints. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { loadCheckpoint } from "../../src/checkpoint/sharded/load.ts";
import { saveCheckpoint } from "../../src/checkpoint/sharded/save.ts";
import type { CausalLm } from "../../src/models/causal_lm.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import { cosine, linear } from "../../src/optim/schedule.ts";
import { openModel } from "../../src/train/open_model.ts";
import { launch } from "../../src/train/run.ts";
import { trainStep } from "../../src/train/step.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { microBatch, SIZES } from "../train/loop_ranks.ts";

/** The head learns at a rate of its own. */
function optimizerOf(model: CausalLm, headRate: number, schedule = linear({ steps: 9 })): AdamW {
  const parameters = [...model.parameters()];
  const isHead = ({ fqn }: { readonly fqn: string }): boolean => fqn === "lm_head.weight";
  return new AdamW([
    { parameters: parameters.filter((parameter) => !isHead(parameter)) },
    { parameters: parameters.filter(isHead), learningRate: headRate, weightDecay: 0 },
  ], { learningRate: 0.01, schedule });
}

test("trainStep() scales each group's own rate by the schedule, and leaves it as it was given", async () => {
  await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
  const model = await openModel(run, SIZES);
  await model.load();
  const optimizer = optimizerOf(model, 0.5);
  const context = { device: run.device, group: run.group, model, optimizer, maxGradNorm: 1 };
  const rates = [1, 2, 3].map((step) => {
    const now = optimizer.groups.map((group) => optimizer.learningRateOf(group));
    assert.equal(trainStep(context, { microBatches: [microBatch(step, 0)] }, step).learningRate, now[0]);
    return now;
  });
  assert.deepEqual(rates, [1, 1 - 1 / 9, 1 - 2 / 9].map((factor) => [0.01 * factor, 0.5 * factor]));
  assert.deepEqual(optimizer.groups.map(({ learningRate }) => learningRate), [0.01, 0.5]);
});

test("loadCheckpoint() goes on with the schedule, and says which group settings differ", async () => {
  using folder = temporaryDirectory();
  await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
  const { group, device } = run;
  const model = await openModel(run, SIZES);
  await model.load();
  const optimizer = optimizerOf(model, 0.5);
  const context = { device, group, model, optimizer, maxGradNorm: 1 };
  for (const step of [1, 2]) trainStep(context, { microBatches: [microBatch(step, 0)] }, step);
  await saveCheckpoint({ directory: folder.path, step: 2, model, optimizer, group, state: {} });

  const same = optimizerOf(model, 0.5);
  const loaded = await loadCheckpoint({ directory: folder.path, model, optimizer: same, group });
  assert.deepEqual(loaded?.changes, []);
  assert.deepEqual(
    same.groups.map((one) => same.learningRateOf(one)),
    optimizer.groups.map((one) => optimizer.learningRateOf(one)),
  );

  const other = optimizerOf(model, 0.25, cosine({ steps: 9, warmupSteps: 1 }));
  const again = await loadCheckpoint({ directory: folder.path, model, optimizer: other, group });
  assert.deepEqual(again?.changes, [
    'schedule was "linear over 9 steps, 0 of them to warm up, to 0", is "cosine over 9 steps, 1 of them to warm up, to 0" ' +
    `(of 'model.embed_tokens.weight' and ${[...model.parameters()].length - 1} others)`,
    "learningRate was 0.5, is 0.25 (of 'lm_head.weight')",
  ]);
});

test("loadCheckpoint() says which keys of the configuration are not as they were saved", async () => {
  using folder = temporaryDirectory();
  await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
  const { group } = run;
  const model = await openModel(run, SIZES);
  await model.load();
  await saveCheckpoint({ directory: folder.path, step: 1, model, group, state: {} });
  const other = await openModel(run, { ...SIZES, rms_norm_eps: 0.1, rope_theta: 77 });
  await other.load();
  // Shapes are those of before, so that nothing else tells.
  assert.deepEqual((await loadCheckpoint({ directory: folder.path, model: other, group }))?.changes, [
    "rms_norm_eps of config.json was not set, is 0.1",
    "rope_theta of config.json was not set, is 77",
  ]);
});
