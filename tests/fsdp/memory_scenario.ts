/** Trains a few steps as the trainer does, and compares what was expected with what the allocator saw. @module */
import type { MemoryPeak } from "../../doors/device.ts";
import { resolveConfig, type RunConfig, TRAIN_SECTIONS } from "../../doors/config.ts";
import { axesOf } from "../../src/train/axes_config.ts";
import { memoryPeak } from "../../src/train/dry_run.ts";
import { parallelize } from "../../src/train/parallelize.ts";
import { optimizerOf } from "../../src/train/optimizer.ts";
import { planModel } from "../../src/train/plan_model.ts";
import { Run } from "../../src/train/run.ts";
import { trainStep } from "../../src/train/step.ts";
import { StepGraph } from "../../src/train/step_graph.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** The model and settings that are trained. */
export interface MemoryCase {
  readonly hfConfig: Readonly<Record<string, unknown>>;
  readonly config: Partial<RunConfig>;
  readonly steps: number;
}

/** The expected and the measured bytes. */
export interface MemoryReport {
  readonly expected: MemoryPeak & { readonly highest: number };
  readonly measured: MemoryPeak & { readonly highest: number };
  /** Bytes in use at the end of each step. */
  readonly inUse: readonly number[];
}

/** A complete configuration. */
export async function runConfig(part: Partial<RunConfig>): Promise<RunConfig> {
  return { ...await resolveConfig(TRAIN_SECTIONS), cpuMath: "wasm", ...part };
}

/** The steps of each rank. */
export async function measureMemory({ device, group }: WorldRank, data: MemoryCase): Promise<MemoryReport> {
  const config = await runConfig(data.config);
  const planned = await planModel({ device, group, localWorldSize: group.size }, config, data.hfConfig);
  const run = new Run({ device, group, axes: axesOf(config, group.size), print: () => undefined });
  parallelize(planned.model, run, config);
  await planned.model.load();
  const { model, estimate: { peakBytes, terms, offloaded, highest } } = planned;
  using graph = config.cudaGraphs ? new StepGraph(device) : undefined;
  const optimizer = optimizerOf(model, config);
  const { data: readers, samples } = run;
  const context = { device, group, data: readers, model, optimizer, maxGradNorm: config.maxGradNorm, graph };
  const inUse: number[] = [];
  const batch = config.globalBatch / samples.size / config.microBatches;
  const seq = config.sequenceLength;
  for (let step = 1; step <= data.steps; step++) {
    const microBatches = Array.from({ length: config.microBatches }, (_, micro) => {
      const inputIds = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7 + step + micro) % model.vocabSize);
      const labels = inputIds.map((id) => (id + 1) % model.vocabSize);
      const firstSample = (((step - 1) * config.microBatches + micro) * samples.size + samples.rank) * batch;
      return { inputIds, labels, batch, seq, random: { seed: config.seed, firstSample } };
    });
    trainStep(context, { microBatches }, step);
    inUse.push(device.allocator.stats.inUse);
  }
  const { allocator } = device;
  return {
    expected: { peakBytes, terms, offloaded, highest },
    measured: { ...memoryPeak({ device, group }), highest: allocator.stats.highest - allocator.begin },
    inUse,
  };
}

rankFunctions(import.meta.url, { measureMemory });
