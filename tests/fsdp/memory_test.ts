/** Predicted against measured memory, leaks, and refusals. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { bfloat16, float32 } from "../../mod.ts";
import { buildModel } from "../../doors/nn.ts";
import { openDevice } from "../../doors/device.ts";
import { OutOfMemoryError } from "../../doors/errors.ts";
import type { RunConfig } from "../../doors/config.ts";
import { predictMemory, requireFits } from "../../src/fsdp/memory.ts";
import { memoryQuestion, planModel } from "../../src/train/setup.ts";
import { measureMemory, type MemoryCase, type MemoryReport, runConfig } from "./memory_scenario.ts";
import { openRank, runRanks } from "./run.ts";

/** The example's model. */
const example = {
  model_type: "llama",
  vocab_size: 4096,
  hidden_size: 256,
  intermediate_size: 688,
  num_hidden_layers: 8,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  max_position_embeddings: 256,
  tie_word_embeddings: false,
};

/** A large tied table: the loss is the moment. */
const tied = {
  ...example,
  vocab_size: 6000,
  hidden_size: 128,
  intermediate_size: 352,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  tie_word_embeddings: true,
};

/** A narrow feed-forward: the backward of attention is the moment. */
const narrow = {
  ...example,
  vocab_size: 640,
  hidden_size: 160,
  intermediate_size: 96,
  num_hidden_layers: 3,
  num_attention_heads: 10,
  num_key_value_heads: 5,
};

function isReport(value: unknown): value is MemoryReport {
  return typeof value === "object" && value !== null && "measured" in value;
}

async function measure(world: number, data: MemoryCase): Promise<MemoryReport> {
  if (world === 1) return await measureMemory(await openRank(), data);
  const [report] = await runRanks(world, "measureMemory", data);
  assert.ok(isReport(report));
  return report;
}

/** A rank's staging of loopback, which copies where `shm` shares: at most this. */
const STAGING = 2 ** 19;

describe("predictMemory()", () => {
  const variants: readonly Partial<RunConfig>[] = [
    {},
    { reshardAfterForward: false },
    { precision: "bfloat16" },
    { strategy: "ddp" },
    { microBatches: 2 },
    { microBatches: 2, strategy: "ddp" },
    { microBatches: 2, precision: "bfloat16" },
  ];
  const cases: (readonly [string, number, MemoryCase])[] = [
    ["the example", 1, { hfConfig: example, config: { sequenceLength: 256, globalBatch: 1 }, steps: 2 }],
  ];
  for (const part of variants) {
    for (const [world, name, hfConfig] of [[1, "tied", tied], [1, "narrow", narrow], [2, "tied", tied]] as const) {
      const config = { ...part, sequenceLength: 32, globalBatch: 4 * world * (part.microBatches ?? 1) };
      cases.push([`${name} ${JSON.stringify(part)}`, world, { hfConfig, config, steps: 2 }]);
    }
  }
  cases.push(["narrow", 4, { hfConfig: narrow, config: { sequenceLength: 32, globalBatch: 16 }, steps: 2 }]);

  for (const [name, world, data] of cases) {
    it(`predicts the peak of ${name} on ${world} ranks`, async () => {
      const { predicted, measured, moment } = await measure(world, data);
      const staging = world === 1 ? 0 : STAGING;
      const text = `${predicted} bytes predicted at the ${moment}, ${measured} seen`;
      assert.ok(predicted <= measured * 1.02 && predicted + staging >= measured * 0.98, text);
    });
  }

  for (const [world, config] of [[1, {}], [2, {}], [2, { strategy: "ddp" }]] as const) {
    it(`leaves as many bytes after step 100 as after step 10, ${JSON.stringify(config)} on ${world} ranks`, async () => {
      const hfConfig = { ...tied, vocab_size: 64, hidden_size: 16, intermediate_size: 24, num_attention_heads: 4 };
      const { inUse } = await measure(world, {
        hfConfig,
        config: { ...config, sequenceLength: 8, globalBatch: 4 },
        steps: 100,
      });
      assert.equal(inUse.length, 100);
      assert.equal(inUse[99], inUse[9]);
    });
  }

  it("adds up: the terms are the peak, and masters of a narrower dtype cost more at rest", async () => {
    const { device, group } = await openRank();
    const model = buildModel(device, example);
    const question = memoryQuestion(model, await runConfig({}), group);
    for (const paramDtype of [float32, bfloat16]) {
      const { gathered, gradients, shards, gradientShards, optimizer, activations, aperture, peak } = predictMemory({
        ...question,
        paramDtype,
        sharedBytes: 1000,
        groupSize: 4,
      });
      assert.equal(gathered + gradients + shards + gradientShards + optimizer + activations + aperture, peak);
      assert.equal(aperture, 250);
    }
    const bytes = (paramDtype: typeof float32): number => predictMemory({ ...question, paramDtype }).shards;
    assert.ok(bytes(bfloat16) > bytes(float32));
  });
});

describe("requireFits()", () => {
  it("refuses a model that is too large before anything is allocated, and says what would do", async () => {
    const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 26 });
    const { group } = await openRank(device);
    const before = device.allocator.stats;
    const text =
      /asked for \d+ bytes with 0 of \d+ in use\. The model of 79\d{5} parameters does not fit 1 rank.*gathered \d+, gradients \d+, shards \d+, .*largest of this kind that does has about (\d+) parameters; (\d+) ranks would be enough/;
    const config = await runConfig({ sequenceLength: 16, globalBatch: 1 });
    let message = "";
    await assert.rejects(planModel(device, group, config, example), (error) => {
      message = error instanceof OutOfMemoryError ? error.message : "";
      return text.test(message);
    });
    assert.deepEqual(device.allocator.stats, before, "not a byte was asked of the allocator");
    const [, largest, enough] = (text.exec(message) ?? []).map(Number);
    const model = buildModel(device, example);
    const question = memoryQuestion(model, config, group);
    const { capacity } = before;
    assert.ok(largest !== undefined && largest > 0 && largest < predictMemory(question).numParameters);
    assert.ok(enough !== undefined && predictMemory({ ...question, world: enough }).peak <= capacity);
    assert.ok(requireFits(question, "memory", 2 ** 30).peak > capacity, "it fits where there is room");
  });

  it("says when ranks do not help", async () => {
    const { device, group } = await openRank();
    const model = buildModel(device, example);
    const large = memoryQuestion(model, await runConfig({ sequenceLength: 256, globalBatch: 64 }), group);
    assert.throws(
      () => requireFits(large, "cpu", 2 ** 26),
      /no number of ranks is enough with this batch and sequence/,
    );
    const ddp = memoryQuestion(model, await runConfig({ strategy: "ddp", globalBatch: 1 }), group);
    assert.throws(
      () => requireFits(ddp, "cpu", 2 ** 26),
      /more ranks do not help while each holds all of it: shard it/,
    );
  });
});
