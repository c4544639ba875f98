/** Expected against measured memory, leaks, and refusals. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { openDevice } from "../../doors/device.ts";
import { OutOfMemoryError } from "../../doors/errors.ts";
import type { RunConfig } from "../../doors/config.ts";
import { estimateStep } from "../../src/train/estimate.ts";
import { planModel } from "../../src/train/plan_model.ts";
import { formatBytes } from "../../src/words.ts";
import { pairwise } from "../../scripts/parity/axes.ts";
import { longTest, onlyInAll, usualFirst } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { measureMemory, type MemoryCase, type MemoryReport, runConfig } from "./memory_scenario.ts";
import { openRank } from "./run.ts";

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

const STAGING_BYTES = 2 ** 20;

async function measure(
  ranks: number,
  { config, ...data }: MemoryCase,
  over: "loopback" | "shm" = "loopback",
): Promise<readonly MemoryReport[]> {
  const planes = { stagingBytes: STAGING_BYTES, timeoutSeconds: 60 };
  const options = { over, planes, memoryBytes: 2 ** 29 };
  const complete = { ...data, config: { ...config, stagingBytes: STAGING_BYTES } };
  return valuesOf(await world(ranks, measureMemory, { ...options, data: complete }));
}

describe("planModel()", () => {
  const policies: readonly Partial<RunConfig>[] = [
    {},
    { reshardAfterForward: false },
    { precision: "bfloat16" },
    { precision: "bfloat16", reshardAfterForward: false },
    { strategy: "ddp" },
    { precision: "bfloat16", strategy: "ddp" },
  ];
  const places = [[1, "loopback"], [2, "loopback"], [4, "loopback"], [2, "shm"]] as const;
  const variants = policies.flatMap((policy) =>
    [1, 2].flatMap((microBatches) => places.map((place) => ({ policy, microBatches, place })))
  );
  const cases: (readonly [string, number, "loopback" | "shm", MemoryCase])[] = [
    ["the example", 1, "loopback", { hfConfig: example, config: { sequenceLength: 256, globalBatch: 1 }, steps: 2 }],
  ];
  for (const { policy, microBatches, place: [ranks, over] } of pairwise(variants)) {
    const [name, hfConfig] = ranks === 4 ? ["narrow", narrow] as const : ["tied", tied] as const;
    const config = { ...policy, microBatches, sequenceLength: 32, globalBatch: 2 * ranks * microBatches };
    cases.push([`${name} ${JSON.stringify({ ...policy, microBatches })}`, ranks, over, { hfConfig, config, steps: 2 }]);
  }

  const optimizers = ["muon", "adafactor", "adamw8bit", "lion", "sgd"].map((optimizer): typeof cases[number] => {
    const config = { optimizer, sequenceLength: 32, globalBatch: 2 };
    return [`tied with ${optimizer}`, 2, "loopback", { hfConfig: tied, config, steps: 2 }];
  });

  const usual = [...usualFirst(cases, (place) => place % 7 === 1), ...usualFirst(optimizers, (place) => place === 1)];
  for (const [name, ranks, over, data] of usual) {
    it(`tells the peak of ${name} on ${ranks} ranks over ${over}, to the byte`, { timeout: 120_000 }, async () => {
      for (const [rank, { expected, measured }] of (await measure(ranks, data, over)).entries()) {
        assert.deepEqual(measured, expected, `rank ${rank}`);
        const sum = Object.values(expected.terms).reduce((total, bytes) => total + bytes, 0);
        assert.equal(sum, expected.peakBytes);
        assert.equal(expected.terms.staging, over === "shm" ? STAGING_BYTES / ranks : expected.terms.staging);
      }
    });
  }

  for (const [ranks, config] of [...[[2, {}]] as const, ...onlyInAll([[1, {}], [2, { strategy: "ddp" }]] as const)]) {
    const [last = 40] = onlyInAll([100]);
    it(`leaves as many bytes after step ${last} as after step 10, ${JSON.stringify(config)} on ${ranks} ranks`, async () => {
      const hfConfig = { ...tied, vocab_size: 64, hidden_size: 16, intermediate_size: 24, num_attention_heads: 4 };
      const sizes = { ...config, sequenceLength: 8, globalBatch: 4 };
      for (const { inUse } of await measure(ranks, { hfConfig, config: sizes, steps: last })) {
        assert.equal(inUse.length, last);
        assert.equal(inUse[last - 1], inUse[9]);
      }
    });
  }

  it("refuses a model that is too large before anything is allocated, and says what is most and what would do", async () => {
    const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 27 });
    const { group } = await openRank(device);
    const before = device.allocator.stats;
    const config = await runConfig({ sequenceLength: 16, globalBatch: 1 });
    const error = await refusal(planModel({ device, group, localWorldSize: group.size }, config, example));
    assert.deepEqual(device.allocator.stats, before, "not a byte was asked of the allocator");
    const needed = await estimateStep(config, example, { device, worldSize: 1 });
    const terms = Object.entries(needed.terms).filter(([, bytes]) => bytes > 0).sort(([, a], [, b]) => b - a);
    const most = terms.map(([name, bytes]) => `${name} ${formatBytes(bytes)}`).join(", ");
    assert.deepEqual([error.asked, error.inUse, error.capacity], [needed.highest, 0, before.capacity]);
    assert.ok(needed.highest >= needed.peakBytes && needed.peakBytes > before.capacity);
    const text =
      /^Out of memory on cpu:0: (asked .*)\. The model of 79\d{5} parameters (.*); (\d+) ranks would be enough$/;
    const [, asked, fits, enough] = text.exec(error.message) ?? assert.fail(error.message);
    assert.equal(
      asked,
      `asked for ${formatBytes(needed.highest)} with 0 bytes of ${formatBytes(before.capacity)} in use`,
    );
    assert.equal(fits, `does not fit 1 rank: a rank needs ${formatBytes(needed.peakBytes)} at once (${most})`);
    const highest = async (worldSize: number): Promise<number> =>
      (await estimateStep({ ...config, globalBatch: worldSize }, example, { device, worldSize })).highest;
    assert.ok(await highest(Number(enough)) <= before.capacity);
    assert.ok(await highest(Number(enough) / 2) > before.capacity, "half as many are not");
  });

  longTest("says in how many parts a batch would fit, or what the smallest part needs", async () => {
    const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 28 });
    const { group } = await openRank(device);
    const config = await runConfig({ sequenceLength: 64, globalBatch: 48 });
    const plan = async (part: Partial<RunConfig> = {}, on = { device, group }): Promise<OutOfMemoryError> =>
      await refusal(planModel({ ...on, localWorldSize: group.size }, { ...config, ...part }, example));
    const { message, capacity } = await plan();
    const text = /; '--micro-batches (\d+)', (\d+) samples? at once, needs (.*)$/;
    const [, parts, samples, needs] = text.exec(message) ?? assert.fail(message);
    assert.equal(Number(parts) * Number(samples), 48);
    const highest = async (microBatches: number): Promise<number> =>
      (await estimateStep({ ...config, microBatches }, example, { device, worldSize: 1 })).highest;
    const enough = await highest(Number(parts));
    assert.ok(enough <= capacity);
    assert.equal(needs, formatBytes(enough));
    const fewer = [2, 3, 4, 6, 8, 12, 16, 24].filter((count) => count < Number(parts)).at(-1);
    assert.ok(fewer !== undefined && await highest(fewer) > capacity, "fewer parts are not");
    const small = await openRank(await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 26 }));
    const whole = await plan({ globalBatch: 4, microBatches: 4 }, small);
    assert.doesNotMatch(whole.message, /micro-batches/);
    const least = await plan({ globalBatch: 4, microBatches: 2 }, small);
    assert.match(least.message, /; '--micro-batches 4', one sample at once, would still need [\d.]+ MiB$/);
  });

  longTest("says when ranks do not help", async () => {
    const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 26 });
    const { group } = await openRank(device);
    const refused = async (part: Partial<RunConfig>): Promise<string> =>
      (await refusal(planModel({ device, group, localWorldSize: group.size }, await runConfig(part), example))).message;
    assert.match(
      await refused({ sequenceLength: 256, globalBatch: 64 }),
      /no number of ranks is enough with this batch and sequence/,
    );
    assert.match(
      await refused({ strategy: "ddp", globalBatch: 1 }),
      /more ranks do not help while each holds all of it: shard it/,
    );
  });
});

async function refusal(planned: Promise<unknown>): Promise<OutOfMemoryError> {
  const error: unknown = await planned.then(() => undefined, (error) => error);
  return error instanceof OutOfMemoryError ? error : assert.fail(String(error));
}
