/** Trains a few steps as the trainer does, and compares what was predicted with what the allocator saw. @module */
import { AdamW } from "../../mod.ts";
import { resolveConfig, type RunConfig, TRAIN_SECTIONS } from "../../doors/config.ts";
import { openModel, planModel } from "../../src/train/setup.ts";
import { trainStep } from "../../src/train/step.ts";
import type { Rank } from "./scenarios.ts";

/** What is trained. */
export interface MemoryCase {
  readonly hfConfig: Readonly<Record<string, unknown>>;
  readonly config: Partial<RunConfig>;
  readonly steps: number;
}

/** Bytes predicted and seen. */
export interface MemoryReport {
  readonly predicted: number;
  readonly moment: string;
  readonly measured: number;
  /** Bytes in use at the end of each step. */
  readonly inUse: readonly number[];
}

function isMemoryCase(data: unknown): data is MemoryCase {
  return typeof data === "object" && data !== null && "hfConfig" in data;
}

/** A complete configuration. */
export async function runConfig(part: Partial<RunConfig>): Promise<RunConfig> {
  return { ...await resolveConfig(TRAIN_SECTIONS), cpuMath: "wasm", ...part };
}

/** The scenario. */
export async function measureMemory({ device, group }: Rank, data: unknown): Promise<MemoryReport> {
  if (!isMemoryCase(data)) throw new Error("not a memory case");
  const config = await runConfig(data.config);
  const planned = await planModel(device, group, config, data.hfConfig);
  await openModel(planned, group, config);
  const { model, prediction } = planned;
  const optimizer = new AdamW(model.parameters());
  const context = { device, group, model, optimizer, maxGradNorm: 1 };
  const inUse: number[] = [];
  const batch = config.globalBatch / group.size / config.microBatches;
  const seq = config.sequenceLength;
  for (let step = 1; step <= data.steps; step++) {
    const microBatches = Array.from({ length: config.microBatches }, (_, micro) => {
      const inputIds = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7 + step + micro) % model.vocabSize);
      return {
        inputIds,
        labels: inputIds.map((id) => (id + 1) % model.vocabSize),
        batch,
        seq,
      };
    });
    trainStep(context, { microBatches }, step);
    inUse.push(device.allocator.stats.inUse);
  }
  const measured = device.allocator.stats.peak - group.stagingBytes + group.stagingBytes / group.size;
  return { predicted: prediction.peak, moment: prediction.moment, measured, inUse };
}
