/**
 * From a model's config to a model that trains: built without memory, checked against what a rank has, sharded or replicated,
 * then initialized or loaded.
 *
 * @module
 */
import { loadHfWeights } from "../checkpoint/load_hf.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { planBuckets } from "../ddp/bucket.ts";
import { replicate } from "../ddp/replicate.ts";
import type { Device } from "../device/device.ts";
import { dtypeFrom, float32 } from "../dtype.ts";
import { fullyShard } from "../fsdp/fully_shard.ts";
import { type MemoryPrediction, type MemoryQuestion, requireFits } from "../fsdp/memory.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { buildModel } from "../models/registry.ts";
import { initializeParameters } from "../nn/initialize.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { RunConfig } from "./config.ts";
import { readHfConfig } from "./open_model.ts";

/** A model that fits, without memory as yet. */
export interface PlannedModel {
  readonly model: CausalLm;
  readonly prediction: MemoryPrediction;
}

/** What the memory of a run is predicted from. */
export function memoryQuestion(model: CausalLm, config: RunConfig, group: ProcessGroup): MemoryQuestion {
  const blocks = model.layers.map((unit) => [...unit.parameters()]);
  const claimed = new Set<Parameter>(blocks.flat());
  const units = [[...model.parameters()].filter((parameter) => !claimed.has(parameter)), ...blocks];
  const fsdp = config.strategy === "fsdp";
  const paramDtype = fsdp ? dtypeFrom(config.precision) : float32;
  const batch = Math.ceil(config.globalBatch / group.size / config.microBatches);
  const accumulates = config.microBatches > 1;
  const shape = { batch, seq: config.sequenceLength, computeBytes: paramDtype.byteLength, accumulates };
  return {
    units: units.map((unit) => unit.map(({ shape }) => shape)),
    world: fsdp ? group.size : 1,
    paramDtype,
    reduceDtype: float32,
    reshardAfterForward: config.reshardAfterForward,
    accumulates,
    ...fsdp ? {} : { buckets: filledBuckets(model, units) },
    optimizerStates: 2,
    activations: model.activationBytes(shape),
    sharedBytes: group.stagingBytes,
    groupSize: group.size,
  };
}

/** Bytes of DDP's buckets with a gradient in them, after the loss's backward, after each block's, and at the end. */
function filledBuckets(model: CausalLm, units: readonly (readonly Parameter[])[]): number[] {
  const buckets = planBuckets([...model.parameters()].toReversed());
  const filled = new Set<readonly Parameter[]>();
  const fill = (parameters: readonly Parameter[]): number => {
    for (const bucket of buckets) if (bucket.some((member) => parameters.includes(member))) filled.add(bucket);
    return [...filled].flat().reduce((bytes, { numel }) => bytes + numel * float32.byteLength, 0);
  };
  const [root = [], ...blocks] = units;
  const [, tied] = [...model.tiedNames][0] ?? [];
  const head = root.find(({ fqn }) => fqn === tied) ?? root.at(-1);
  return [head === undefined ? 0 : fill([head]), ...blocks.toReversed().map(fill), fill(root)];
}

/**
 * Builds the model of a run, without memory.
 *
 * @param hfConfig what to build, where `config.model` names none
 * @throws {OutOfMemoryError} if it cannot fit, before any memory is taken
 * @throws {UnsupportedError} if there is no such family of models, or it has something that is not there yet
 */
export async function planModel(
  device: Device,
  group: ProcessGroup,
  config: RunConfig,
  hfConfig: Readonly<Record<string, unknown>>,
): Promise<PlannedModel> {
  const model = buildModel(device, config.model === undefined ? hfConfig : await readHfConfig(config.model));
  const prediction = requireFits(memoryQuestion(model, config, group), device.name, device.allocator.stats.capacity);
  return { model, prediction };
}

/**
 * Gives a planned model its memory and its weights: those of `config.model`, or initial ones from the seed. Every rank must
 * call it.
 */
export async function openModel(
  { model }: PlannedModel,
  group: ProcessGroup,
  config: RunConfig,
): Promise<void> {
  if (config.strategy === "ddp") replicate(model, { mesh: group });
  else shard(model, group, config);
  if (config.model === undefined) initializeParameters(model, config.seed);
  else await loadHfWeights(model, config.model, group);
}

function shard(model: CausalLm, group: ProcessGroup, config: RunConfig): void {
  const { reshardAfterForward } = config;
  const precision = { paramDtype: dtypeFrom(config.precision), reduceDtype: float32 };
  for (const block of model.layers) fullyShard(block, { mesh: group, precision, reshardAfterForward });
  // The root's parameters are needed at both ends of forward and backward, so they stay in between.
  fullyShard(model, { mesh: group, precision });
}
