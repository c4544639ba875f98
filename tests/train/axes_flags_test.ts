/** Flags that lay the ranks over axes: what they mean, what is refused, the memory that a dry run tells, and a run of processes. @module */
import assert from "node:assert/strict";
import { after } from "node:test";
import { ConfigError } from "../../doors/errors.ts";
import type { RunConfig } from "../../doors/config.ts";
import { resolveConfig } from "../../src/config/resolve.ts";
import { axesOf, dataRanks } from "../../src/train/axes_config.ts";
import { requireCompatible } from "../../src/train/checks.ts";
import { TRAIN_SECTIONS } from "../../src/train/config.ts";
import { estimateStep } from "../../src/train/estimate.ts";
import { measureMemory, type MemoryReport } from "../fsdp/memory_scenario.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { longTest, sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { keepRanks } from "./kept_ranks.ts";
import { flagsIn, losses } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

async function configOf(...argv: string[]): Promise<RunConfig> {
  return await resolveConfig(TRAIN_SECTIONS, { argv });
}

test("--tp-size, --fsdp-size and --dp-replicate-size lay the ranks, and one of them is what the others leave", async () => {
  for (
    const [argv, ranks, axes, readers] of [
      [[], 4, undefined, 4],
      [["--tp-size", "2"], 4, { shard: 2, tensor: 2 }, 2],
      [["--tp-size", "4"], 4, { shard: 1, tensor: 4 }, 1],
      [["--tp-size", "1"], 4, { shard: 4 }, 4],
      [["--fsdp-size", "4"], 4, { shard: 4 }, 4],
      [["--dp-replicate-size", "2"], 8, { replicate: 2, shard: 4 }, 8],
      [["--dp-replicate-size", "2", "--tp-size", "2"], 8, { replicate: 2, shard: 2, tensor: 2 }, 4],
      [["--dp-replicate-size", "2", "--fsdp-size", "2", "--tp-size", "2"], 8, { replicate: 2, shard: 2, tensor: 2 }, 4],
      [["--fsdp-size", "2", "--tp-plan", "auto"], 8, { shard: 2, tensor: 4 }, 2],
      [["--cp-size", "2"], 4, { shard: 2, context: 2 }, 2],
      [["--cp-size", "2", "--tp-size", "2", "--dp-replicate-size", "2"], 8, {
        replicate: 2,
        shard: 1,
        context: 2,
        tensor: 2,
      }, 2],
      [["--strategy", "ddp", "--tp-size", "2"], 8, { shard: 4, tensor: 2 }, 4],
      [["--ep-size", "2"], 4, { shard: 2, expert: 2 }, 4],
      [["--ep-size", "4"], 4, { shard: 1, expert: 4 }, 4],
      [["--ep-size", "2", "--dp-replicate-size", "2"], 8, { replicate: 2, shard: 2, expert: 2 }, 8],
      [["--ep-size", "2", "--fsdp-size", "2", "--dp-replicate-size", "2"], 4, { replicate: 2, shard: 1, expert: 2 }, 4],
      [["--pp-size", "2"], 4, { pipeline: 2, shard: 2 }, 2],
      [["--pp-size", "2", "--tp-size", "2", "--dp-replicate-size", "2"], 8, {
        pipeline: 2,
        replicate: 2,
        shard: 1,
        tensor: 2,
      }, 2],
      [["--pp-size", "4", "--strategy", "ddp"], 8, { pipeline: 4, shard: 2 }, 2],
      [["--pp-size", "2", "--cp-size", "2"], 8, { pipeline: 2, shard: 2, context: 2 }, 2],
      [["--pp-size", "2", "--ep-size", "2"], 8, { pipeline: 2, shard: 2, expert: 2 }, 4],
      [["--ep-size", "2", "--tp-size", "2"], 8, { shard: 4, tensor: 2 }, 4],
      [["--ep-size", "2", "--tp-size", "2", "--strategy", "ddp"], 4, { shard: 2, tensor: 2 }, 2],
      [["--ep-size", "4", "--tp-size", "2"], 8, { shard: 2, expert: 2, tensor: 2 }, 4],
      [["--ep-size", "4", "--tp-size", "2"], 4, { shard: 1, expert: 2, tensor: 2 }, 2],
      [["--ep-size", "2", "--cp-size", "2"], 8, { shard: 2, expert: 2, context: 2 }, 4],
    ] as const
  ) {
    const config = await configOf(...argv);
    assert.deepEqual(axesOf(config, ranks), axes, argv.join(" "));
    assert.equal(dataRanks(config, ranks), readers);
  }
});

test("sizes that the ranks do not have, and axes that are not implemented yet, are refused with what would do", async () => {
  for (
    const [argv, ranks, pattern] of [
      [["--tp-size", "3"], 4, /tpSize: expected sizes whose product divides 4 ranks, got tpSize 3 = 3/],
      [
        ["--fsdp-size", "2", "--tp-size", "1"],
        4,
        /expected sizes whose product is 4 ranks, got fsdpSize 2 × tpSize 1 = 2/,
      ],
      [
        ["--fsdp-size", "2", "--tp-size", "8"],
        4,
        /expected sizes whose product is 4 ranks, got fsdpSize 2 × tpSize 8 = 16/,
      ],
      [["--cp-size", "3"], 4, /cpSize: expected sizes whose product divides 4 ranks, got cpSize 3 = 3/],
      [
        ["--enable-sequence-parallel"],
        4,
        /enableSequenceParallel: expected tpSize of at least 2 to be set too, got true without it/,
      ],
      [["--ep-size", "3"], 4, /epSize: expected a number that divides the 4 ranks that share a copy, got 3/],
      [
        ["--ep-size", "2", "--fsdp-size", "1", "--dp-replicate-size", "4"],
        4,
        /epSize: .* the 1 rank that share a copy, got 2/,
      ],
      [
        ["--ep-size", "2", "--tp-size", "4"],
        4,
        /epSize: expected a multiple of tpSize 4, over whose ranks experts are divided first, got 2/,
      ],
      [
        ["--ep-size", "4", "--tp-size", "2", "--dp-replicate-size", "2"],
        4,
        /epSize: expected a number that divides the 2 ranks that share a copy, got 4/,
      ],
      [["--cp-comm-strategy", "ring"], 4, /cpCommStrategy: expected cpSize from 2 with it, got cpSize 1/],
      [
        ["--ep-size", "2", "--strategy", "ddp"],
        4,
        /epSize: expected 1 with strategy ddp, which copies all experts, got 2/,
      ],
      [["--ep-size", "2", "--mesh", "2x2"], 4, /mesh: expected shard, as epSize 2 lays the ranks, got '2x2'/],
      [["--pp-size", "3"], 4, /ppSize: expected sizes whose product divides 4 ranks, got ppSize 3 = 3/],
      [
        ["--pp-size", "2", "--tp-size", "2", "--enable-sequence-parallel"],
        4,
        /enableSequenceParallel: expected false with ppSize above 1, .*, got true/,
      ],
      [["--pp-schedule", "interleaved"], 4, /ppSchedule: expected ppSize of at least 2, got ppSize 1/],
      [["--pp-split", "parameters"], 4, /ppSplit: expected ppSize of at least 2, got ppSize 1/],
      [["--pp-layers", "1,2"], 4, /ppLayers: expected ppSize of at least 2, got ppSize 1/],
      [
        ["--pp-layers", "1,2,3", "--pp-size", "2"],
        4,
        /ppLayers: expected a number of blocks for each of 2 stages, got 1,2,3/,
      ],
      [
        ["--pp-size", "2", "--pp-stages-per-rank", "2"],
        4,
        /ppStagesPerRank: expected 1 with ppSchedule 1f1b, got 2/,
      ],
      [
        ["--pp-size", "2", "--pp-stages-per-rank", "1", "--pp-schedule", "interleaved"],
        4,
        /ppStagesPerRank: expected at least 2 with ppSchedule interleaved, got 1/,
      ],
      [["--mesh", "2x2", "--pp-size", "2"], 4, /mesh: expected shard, as ppSize 2 lays the ranks, got '2x2'/],
      [["--mesh", "2x2", "--tp-size", "2"], 4, /mesh: expected shard, as tpSize 2 lays the ranks, got '2x2'/],
      [
        ["--strategy", "ddp", "--fsdp-size", "2"],
        4,
        /fsdpSize: expected 1 with strategy ddp, which shards nothing, got 2/,
      ],
      [["--tp-plan", "auto"], 4, /tpPlan: expected tpSize of at least 2, or fsdpSize, .*, got neither/],
      [["--tp-plan", "auto", "--tp-size", "1"], 4, /tpPlan: expected tpSize of at least 2, .*, got tpSize 1/],
    ] as const
  ) {
    const config = await configOf(...argv);
    assert.throws(
      () => axesOf(config, ranks),
      (error) => error instanceof ConfigError && pattern.test(error.message),
      argv.join(" "),
    );
  }
});

test("what stages cannot have together is refused before anything is opened", async () => {
  for (
    const [argv, pattern] of [
      [["--pp-size", "4", "--micro-batches", "3"], /microBatches: expected at least 4, as many as stages, .*, got 3/],
      [
        ["--pp-size", "4", "--micro-batches", "9", "--pp-schedule", "interleaved"],
        /microBatches: expected a multiple of 4, with ppSize 4 and ppSchedule 'interleaved', got 9/,
      ],
      [["--pp-size", "2", "--micro-batches", "2", "--lora-r", "4"], /ppSize: expected 1 with loraR, .*, got 2/],
      [["--pp-size", "2", "--micro-batches", "2", "--adapter", "a"], /ppSize: expected 1 with adapter, .*, got 2/],
    ] as const
  ) {
    const config = await configOf(...argv);
    assert.throws(
      () => requireCompatible(config),
      (error) => error instanceof ConfigError && pattern.test(error.message),
      argv.join(" "),
    );
  }
});

test("steps over a context, an expert or a pipeline axis are not captured", async () => {
  for (const name of ["cp", "ep", "pp"]) {
    const config = await configOf(`--${name}-size`, "2", "--cuda-graphs");
    const pattern = new RegExp(`cudaGraphs: expected ${name}Size 1, got ${name}Size 2`);
    assert.throws(
      () => requireCompatible(config),
      (error) => error instanceof ConfigError && pattern.test(error.message),
    );
  }
});

test("quantized weights are not cut over a tensor axis", async () => {
  const config = await configOf("--tp-size", "2", "--lora-r", "4", "--load-in-4bit");
  const pattern = /tpSize: expected 1 with loadIn4bit, as a cut would divide blocks of its codes, got 2/;
  assert.throws(
    () => requireCompatible(config),
    (error) => error instanceof ConfigError && pattern.test(error.message),
  );
});

test("--tp-plan takes styles as JSON, and refuses what is no style", async () => {
  const config = await configOf(
    "--tp-size",
    "2",
    "--tp-plan",
    '{"model.layers.*.mlp.up_proj":"colwise_gather_output"}',
  );
  assert.deepEqual(config.tpPlan, { "model.layers.*.mlp.up_proj": "colwise_gather_output" });
  await assert.rejects(
    configOf("--tp-size", "2", "--tp-plan", '{"lm_head":"columns"}'),
    /--tp-plan: expected 'auto' or 'colwise' or 'rowwise'/,
  );
});

const LLAMA = zooModels("llama")[0]?.hfConfig ?? {};

for (
  const [ranks, family, config] of usualFirst(
    [
      [2, "llama", { tpSize: 2 }],
      [4, "llama", { tpSize: 2, fsdpSize: 2, precision: "bfloat16" }],
      [4, "qwen3_next", { tpSize: 2, fsdpSize: 2 }],
      [4, "gpt_oss", { tpSize: 2, dpReplicateSize: 2, microBatches: 2 }],
      [4, "deepseek_v2", { tpSize: 4, activationCheckpointing: "full" }],
      [4, "gpt2", { tpSize: 2, strategy: "ddp" }],
      [2, "llama", { tpSize: 2, enableSequenceParallel: true, precision: "bfloat16" }],
      [4, "qwen3_moe", { tpSize: 2, fsdpSize: 2, enableSequenceParallel: true, activationCheckpointing: "full" }],
      [2, "llama", { cpSize: 2, precision: "bfloat16" }],
      [2, "llama", { cpSize: 2, cpCommStrategy: "ring", precision: "bfloat16", activationCheckpointing: "full" }],
      [2, "qwen3_5", { cpSize: 2, precision: "bfloat16", activationCheckpointing: "selective" }],
      [4, "deepseek_v2", { cpSize: 2, tpSize: 2, activationCheckpointing: "full" }],
    ] as const,
    (place) => [1, 3, 5, 7, 9, 10].includes(place),
  )
) {
  test(`a dry run tells the memory of ${family} over ${ranks} ranks with ${JSON.stringify(config)} to the byte`, async () => {
    for (const { hfConfig } of usualFirst(zooModels(family), (place) => place === 0)) {
      const data = {
        hfConfig,
        config: { ...config, sequenceLength: 16, globalBatch: 8, stagingBytes: 2 ** 20 },
        steps: 2,
      };
      const planes = { stagingBytes: 2 ** 20, timeoutSeconds: 60 };
      const reports = valuesOf<MemoryReport>(await world(ranks, measureMemory, { planes, memoryBytes: 2 ** 28, data }));
      for (const { measured, expected } of reports) assert.deepEqual(measured, expected);
    }
  });
}

test("a rank's parameters and the largest scores fall by the ranks of a tensor axis", async () => {
  const sizes = { ...LLAMA, vocab_size: 40_000, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 4 };
  const config = { sequenceLength: 64, globalBatch: 1, cpuMath: "wasm" } as const;
  const at = async (tpSize: number) => {
    return await estimateStep({ ...await configOf(), ...config, tpSize }, sizes, { worldSize: tpSize });
  };
  const [one, four] = [await at(1), await at(4)];
  assert.ok(four.terms.parameters < 0.65 * one.terms.parameters, "the embedding stays as it is");
  assert.ok(four.peakBytes < 0.7 * one.peakBytes, `${four.peakBytes} of ${one.peakBytes}`);
});

test("activations fall by the ranks of a tensor axis where these share the positions between layers", async () => {
  const sizes = { ...LLAMA, num_hidden_layers: 12, hidden_size: 128, intermediate_size: 128, vocab_size: 64 };
  const config = { sequenceLength: 512, globalBatch: 1, cpuMath: "wasm", tpSize: 4 } as const;
  const heads = { num_attention_heads: 4, num_key_value_heads: 4, max_position_embeddings: 512 };
  for (const [activationCheckpointing, most] of [["none", 0.8], ["full", 0.55]] as const) {
    const [whole = NaN, parts = NaN] = await Promise.all([false, true].map(async (enableSequenceParallel) => {
      const given = { ...await configOf(), ...config, activationCheckpointing, enableSequenceParallel };
      const { terms } = await estimateStep(given, { ...sizes, ...heads }, { worldSize: 4 });
      return terms.activations;
    }));
    assert.ok(parts < most * whole, `${activationCheckpointing}: ${parts} of ${whole}`);
  }
});

for (const [optimizer, cut] of [["adafactor", "--ep-size"], ["muon", "--tp-size"]] as const) {
  test(`${optimizer}, which updates unsharded matrices, is refused in one sentence with ${cut}`, async () => {
    using folder = temporaryDirectory();
    const { code, stderr } = await run(flagsIn(folder, "experts=4", cut, "2", "--optimizer", optimizer));
    assert.equal(code, 1, stderr);
    assert.match(
      stderr,
      /UnsupportedError: .*as an unsharded matrix: axis '(expert|tensor)' cuts it along dim \d\. Use AdamW/,
    );
    assert.doesNotMatch(stderr, /^ +at /m);
  });
}

test("heads that ranks do not divide are refused before any weight has memory, with the remedy", async () => {
  using folder = temporaryDirectory();
  const ended = await run(flagsIn(folder, "--tp-size", "3", "--global-batch", "3"), { ranks: 3 });
  assert.notEqual(ended.code, 0);
  assert.match(
    ended.stderr,
    /Cannot cut 'model\.layers\.0\.self_attn': its 2 heads cannot be divided over 3 ranks; choose a size that divides 2/,
  );
  assert.doesNotMatch(ended.stderr, /step 1 /);
});

test(
  "a run with --tp-size trains as one without, and either goes on where the other stopped",
  { timeout: 240_000 },
  async () => {
    using folder = temporaryDirectory();
    const few = (out: string, ...more: readonly string[]): readonly string[] =>
      flagsIn(folder, "--steps", "6", "--save-every", "3", "--out", folder.file(out), ...more);
    for (const [out, ranks, more] of [["plain", 2, []], ["cut", 4, ["--tp-size", "2"]]] as const) {
      const ended = await run(few(out, ...more), { ranks });
      assert.equal(ended.code, 0, ended.stderr);
      if (ranks === 4) assert.match(ended.stderr, /FSDP over 4 ranks \(shard 2 × tensor 2, shm\)/);
    }
    const [plain, cut] = [losses(folder, "plain"), losses(folder, "cut")];
    assert.equal(plain.size, 6);
    const near = (found: ReadonlyMap<number, number>): void => {
      for (const [step, loss] of found) {
        const expected = plain.get(step) ?? NaN;
        assert.ok(Math.abs(loss - expected) < 1e-5 * expected, `step ${step}: ${loss}, without ${expected}`);
      }
    };
    near(cut);
    assert.equal(cut.size, 6);
    for (const [from, ranks, more] of [["plain", 2, ["--tp-size", "2"]], ["cut", 1, []]] as const) {
      const checkpoint = folder.file(`${from}/checkpoint-3`);
      const ended = await run(few(`${from}-on`, "--resume", checkpoint, ...more), { ranks });
      assert.equal(ended.code, 0, ended.stderr);
      const on = losses(folder, `${from}-on`);
      assert.deepEqual([...on.keys()], [4, 5, 6]);
      near(on);
    }
  },
);

longTest(
  "a run with --cp-size trains and evaluates packed documents as one without",
  { timeout: 240_000 },
  async () => {
    using folder = temporaryDirectory();
    const heldOut = ["--eval-data", folder.write("held.txt", "what is held out ".repeat(30)), "--eval-every", "3"];
    const few = (out: string, ...more: readonly string[]): readonly string[] =>
      flagsIn(folder, "--steps", "6", "--packing", "bfd-split", ...heldOut, "--out", folder.file(out), ...more);
    for (const [out, ranks, more] of [["plain", 1, []], ["shared", 2, ["--cp-size", "2"]]] as const) {
      const ended = await run(few(out, ...more), { ranks });
      assert.equal(ended.code, 0, ended.stderr);
      if (ranks === 2) assert.match(ended.stderr, /FSDP over 2 ranks \(shard 1 × context 2, shm\)/);
    }
    const [plain, shared] = [losses(folder, "plain"), losses(folder, "shared")];
    assert.equal(plain.size, 6);
    for (const [step, loss] of plain) {
      const found = shared.get(step) ?? NaN;
      assert.ok(Math.abs(found - loss) < 1e-5 * loss, `step ${step}: ${found}, without ${loss}`);
    }
  },
);
