/** Pipeline parallelism in the trainer: one rank's weights, checkpoints between runs with stages and without, memory by dry run. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { resolveConfig, TRAIN_SECTIONS } from "../../doors/config.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { estimateStep, type StepEstimate } from "../../src/train/estimate.ts";
import { forwardCosts, withMeasuredStages } from "../../src/train/stage_split.ts";
import { measureMemory, type MemoryReport } from "../fsdp/memory_scenario.ts";
import { longTest, onlyInAll, sharedTest as test } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { flagsIn, losses, run } from "./runs.ts";

const MEMORY_CASES = [
  [2, "llama", { ppSize: 2, microBatches: 2, ppSchedule: "1f1b" }],
  ...onlyInAll(
    [
      [4, "llama", { ppSize: 2, fsdpSize: 2, microBatches: 4, precision: "bfloat16" }],
      [4, "olmo3", { ppSize: 2, fsdpSize: 2, microBatches: 2, ppSchedule: "interleaved" }],
      [4, "qwen3_next", { ppSize: 4, microBatches: 4, activationCheckpointing: "full" }],
      [4, "gpt2", { ppSize: 2, tpSize: 2, microBatches: 2, strategy: "ddp" }],
      [2, "glm_moe_dsa", { ppSize: 2, microBatches: 3 }],
    ] as const,
  ),
] as const;

for (const [ranks, family, config] of MEMORY_CASES) {
  test(`a dry run tells the memory of ${family} over ${ranks} ranks with ${JSON.stringify(config)} to the byte`, async () => {
    for (const { hfConfig } of zooModels(family)) {
      const sizes = { sequenceLength: 16, globalBatch: 24, stagingBytes: 2 ** 20 };
      const data = { hfConfig, config: { ...config, ...sizes }, steps: 2 };
      const planes = { stagingBytes: 2 ** 20, timeoutSeconds: 60 };
      const reports = valuesOf<MemoryReport>(await world(ranks, measureMemory, { planes, memoryBytes: 2 ** 28, data }));
      for (const { measured, expected, inUse: [first, second] } of reports) {
        assert.deepEqual(measured, expected);
        assert.equal(first, second, "nothing is left by a step");
      }
    }
  });
}

test("a rank's parameters fall by the number of stages, and with more stages a rank holds fewer activations", async () => {
  const sizes = { ...zooModels("llama")[0]?.hfConfig, vocab_size: 64, num_hidden_layers: 4, hidden_size: 64 };
  const config = { sequenceLength: 64, globalBatch: 4, microBatches: 4, cpuMath: "wasm" } as const;
  const at = async (ppSize: number, rank: number): Promise<StepEstimate> => {
    const given = { ...await resolveConfig(TRAIN_SECTIONS), ...config, ppSize };
    return await estimateStep(given, sizes, { worldSize: ppSize, rank });
  };
  const one = await at(1, 0);
  const four = [await at(4, 0), await at(4, 1), await at(4, 2), await at(4, 3)];
  const parameters = four.reduce((sum, { terms }) => sum + terms.parameters, 0);
  assert.ok(Math.abs(parameters / one.terms.parameters - 1) < 0.05, "each is kept once");
  assert.ok(four.every(({ terms }) => terms.parameters < 0.35 * one.terms.parameters));
  // By 1F1B a stage holds the activations of as many micro-batches as there are stages from it on.
  const held = four.map(({ terms }) => terms.activations);
  for (const [i, bytes] of held.entries()) assert.ok(bytes < (held[i - 1] ?? Infinity), held.join(", "));
  assert.ok((held[3] ?? NaN) < 0.5 * one.terms.activations);
});

test("forwardCosts() counts what a dry run of one rank counts, and stages by flops are as even as blocks allow", async () => {
  const [seq, hidden, vocab, width] = [32, 64, 4096, 96];
  const sizes = { num_hidden_layers: 6, hidden_size: hidden, intermediate_size: width, num_attention_heads: 4 };
  const config = { model_type: "llama", vocab_size: vocab, tie_word_embeddings: false, ...sizes };
  const { before, blocks, behind } = await forwardCosts(config, seq, { cpuMath: "wasm" });
  assert.equal(new Set(blocks).size, 1);
  // Products of a block and of the head, two operations for each weight and position; attention and norms are the rest.
  const products = 2 * seq * (4 * hidden * hidden + 3 * hidden * width);
  assert.ok((blocks[0] ?? NaN) > products && (blocks[0] ?? NaN) < 1.4 * products, `${blocks[0]}, ${products}`);
  assert.ok(behind > 2 * seq * hidden * vocab && behind < 3.2 * 2 * seq * hidden * vocab, String(behind));
  assert.ok(before < products / 10);
  const given = { ...await resolveConfig(TRAIN_SECTIONS), ppSize: 2, sequenceLength: seq, ppSplit: "flops" } as const;
  const { ppLayers } = await withMeasuredStages(given, config, { cpuMath: "wasm" });
  assert.deepEqual(ppLayers, [5, 1], "the head costs more than five blocks");
});

function weightsOf(folder: TemporaryDirectory, out: string): string {
  return readFileSync(folder.file(`${out}/model/model.safetensors`)).toString("base64");
}

longTest(
  "a run with --pp-size has the weights of one without, and either goes on where the other stopped",
  { timeout: 240_000 },
  async () => {
    using folder = temporaryDirectory();
    const heldOut = ["--eval-data", folder.write("held.txt", "what is held out ".repeat(30)), "--eval-every", "3"];
    const few = (out: string, ...more: readonly string[]): readonly string[] =>
      flagsIn(
        folder,
        "--steps",
        "4",
        "--save-every",
        "2",
        "--micro-batches",
        "2",
        ...heldOut,
        "--out",
        folder.file(out),
        ...more,
      );
    for (const [out, ranks, more] of [["plain", 1, []], ["staged", 2, ["--pp-size", "2"]]] as const) {
      const ended = await run(few(out, ...more), { ranks });
      assert.equal(ended.code, 0, ended.stderr);
      if (ranks === 2) assert.match(ended.stderr, /FSDP over 2 ranks \(pipeline 2 × shard 1, shm\)/);
    }
    const plain = losses(folder, "plain");
    assert.equal(plain.size, 4);
    assert.deepEqual(losses(folder, "staged"), plain);
    assert.equal(weightsOf(folder, "staged"), weightsOf(folder, "plain"));
    for (const [from, ranks, more] of [["plain", 2, ["--pp-size", "2"]], ["staged", 1, []]] as const) {
      const checkpoint = folder.file(`${from}/checkpoint-2`);
      const ended = await run(few(`${from}-on`, "--resume", checkpoint, ...more), { ranks });
      assert.equal(ended.code, 0, ended.stderr);
      assert.deepEqual([...losses(folder, `${from}-on`).keys()], [3, 4]);
      assert.equal(weightsOf(folder, `${from}-on`), weightsOf(folder, "plain"));
    }
  },
);
