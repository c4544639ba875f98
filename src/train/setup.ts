/**
 * From a model's config to a model that trains: built without memory, checked against what a rank has, sharded or replicated,
 * then initialised or loaded.
 *
 * @module
 */
import { loadHfWeights } from "../checkpoint/load_hf.ts";
import { parseJsonObject } from "../checkpoint/json.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { replicate } from "../ddp/replicate.ts";
import type { Device } from "../device/device.ts";
import { dtypeFrom, float32 } from "../dtype.ts";
import { type FullyShardedModule, fullyShard } from "../fsdp/fully_shard.ts";
import { type MemoryPrediction, type MemoryQuestion, requireFits } from "../fsdp/memory.ts";
import type { CausalLm } from "../models/family.ts";
import { buildModel } from "../models/registry.ts";
import { initializeParameters } from "../nn/initialize.ts";
import { readBytes } from "../runtime/files.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { RunConfig } from "./config.ts";
import type { Parallelism } from "./step.ts";

/** A model ready to train. */
export interface TrainableModel {
  readonly model: CausalLm;
  readonly parallelism: Parallelism & { dispose(): void };
  readonly prediction: MemoryPrediction;
}

/** Reads the `config.json` of a Hugging Face folder. */
export async function readHfConfig(folder: string): Promise<Record<string, unknown>> {
  const file = `${folder}/config.json`;
  return { ...parseJsonObject(await readBytes(file), { file, what: "a model configuration", maxDepth: 32 }) };
}

/** What the memory of a run is predicted from. */
export function memoryQuestion(model: CausalLm, config: RunConfig, group: ProcessGroup): MemoryQuestion {
  const claimed = new Set<Parameter>();
  const blocks = model.shardingUnits().map((unit) => {
    const parameters = [...unit.parameters()];
    for (const parameter of parameters) claimed.add(parameter);
    return parameters.map(({ shape }) => shape);
  });
  const root = [...model.parameters()].filter((parameter) => !claimed.has(parameter)).map(({ shape }) => shape);
  const paramDtype = dtypeFrom(config.precision);
  const batch = config.globalBatch / group.size / config.microBatches;
  const fsdp = config.strategy === "fsdp";
  return {
    units: fsdp ? [root, ...blocks] : [[...root, ...blocks.flat()]],
    world: fsdp ? group.size : 1,
    paramDtype,
    reduceDtype: float32,
    reshardAfterForward: config.reshardAfterForward,
    optimizerStates: 2,
    activationBytes: model.activationBytes({ batch, seq: config.sequenceLength, computeBytes: paramDtype.byteLength }),
    sharedBytes: group.sharedBytes,
    groupSize: group.size,
  };
}

/**
 * Builds the model of a run. Every rank must call it.
 *
 * @param hfConfig what to build; its weights come from `config.model`, or are initialised from the seed
 * @throws {OutOfMemoryError} if it cannot fit, before any memory is taken
 */
export async function openModel(
  device: Device,
  group: ProcessGroup,
  config: RunConfig,
  hfConfig: Readonly<Record<string, unknown>>,
): Promise<TrainableModel> {
  const model = buildModel(device, hfConfig);
  const prediction = requireFits(memoryQuestion(model, config, group), device.name, device.allocator.stats.capacity);
  const parallelism = config.strategy === "ddp" ? replicate(model, { group }) : shard(model, group, config);
  if (config.model === undefined) initializeParameters(model, config.seed);
  else await loadHfWeights(model, config.model, group);
  return { model, parallelism, prediction };
}

function shard(model: CausalLm, group: ProcessGroup, config: RunConfig): FullyShardedModule {
  const { reshardAfterForward } = config;
  const precision = { paramDtype: dtypeFrom(config.precision), reduceDtype: float32 };
  for (const block of model.shardingUnits()) fullyShard(block, { group, precision, reshardAfterForward });
  // The root's parameters are needed at both ends of forward and backward, so they stay in between.
  return fullyShard(model, { group, precision });
}
