/**
 * From a model's config to a model that trains: it is built without memory, a dry run checks that its step fits a rank, it is
 * sharded or replicated, then initialized or loaded.
 *
 * @module
 */
import { trainedPart } from "../adapters/files.ts";
import { CheckpointStager } from "../checkpoint/sharded/stager.ts";
import { standInOf } from "../comm/data/dry.ts";
import type { Batch } from "../data/micro_batch.ts";
import { replicate } from "../ddp/replicate.ts";
import type { Device } from "../device/device.ts";
import { POOL_NAME } from "../device/offload.ts";
import { countingPool, type StatePool } from "../device/state_pool.ts";
import { type DType, dtypeFrom, float16, float32 } from "../dtype.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { applyActivationCheckpointing } from "../nn/activation_checkpointing.ts";
import { AdamW } from "../optim/adamw.ts";
import { GradScaler } from "../optim/grad_scaler.ts";
import { SCHEDULES } from "../optim/schedule.ts";
import { cpuOffloadPolicy } from "../parallel/offload.ts";
import { type DtypeLedger, ledgerOf, resolvePrecision } from "../parallel/precision.ts";
import { shardModel } from "../plans/shard_model.ts";
import { adapt, hasAdapter } from "./adapter_config.ts";
import { checkpointingOf, requireCompatible, requireSizes } from "./checks.ts";
import { PEAK_LEARNING_RATES, type RunConfig, type StepConfig, usualWarmupSteps } from "./config.ts";
import { type DryRun, dryRun, type DryRunOptions } from "./dry_run.ts";
import { meshOf, shardRanks } from "./mesh.ts";
import { type ModelSource, openModel } from "./open_model.ts";
import type { Run } from "./run.ts";
import { type MemoryNeed, shortageError, worstShortage } from "./shortage.ts";
import { trainStep } from "./step.ts";
import { StepGraph, STEPS_TO_GRAPH } from "./step_graph.ts";

/** Memory, communication and operations of a model's step. */
export interface StepEstimate extends DryRun {
  /** Parameters of the model. */
  readonly numParameters: number;
  /** Bytes of the file of optimizer states; 0 without one. */
  readonly stateFileBytes: number;
}

/** A step for a dry run. */
interface StepTrial {
  /** Folder of an adapter. @default none */
  readonly adapter?: string | undefined;
  /** dtype that frozen parameters are kept in. @default `file`: the dtype of their file */
  readonly frozenDtype?: "file" | DType;
  /** Adds the adapter that is trained in place of the model. @default none */
  readonly adapt?: (model: CausalLm) => void;
  /** Refuses a model for which the step is not possible. */
  readonly check?: (model: CausalLm) => void;
  /** Shards or replicates the model. */
  readonly parallelize: (model: CausalLm, run: Run) => void;
  readonly optimizer: (model: CausalLm) => AdamW;
  /** Scales the loss. @default no scaler */
  readonly scaler?: (device: Device) => GradScaler | undefined;
  readonly batch: Batch;
  readonly maxGradNorm: number;
  /** Allocates memory for the copy of an asynchronous save. @default false */
  readonly asyncSave?: boolean;
  /** Captures the step, so that the memory of its graph counts. @default false */
  readonly cudaGraphs?: boolean;
}

/** Does a dry run of a model's step on one rank. Weights get memory and no values. */
export async function dryStep(
  source: ModelSource,
  trial: StepTrial,
  options: DryRunOptions,
): Promise<Omit<StepEstimate, "stateFileBytes">> {
  let numParameters = 0;
  const hasGraph = trial.cudaGraphs === true;
  const taken = await dryRun(async (run) => {
    const { device, group, data } = run;
    const model = await openModel(run, source, {
      frozenDtype: trial.frozenDtype ?? "file",
      ...trial.adapter === undefined ? {} : { adapter: trial.adapter },
    });
    trial.adapt?.(model);
    trial.check?.(model);
    for (const { numel } of model.parameters()) numParameters += numel;
    trial.parallelize(model, run);
    await model.load();
    const optimizer = trial.optimizer(model);
    const scaler = trial.scaler?.(device);
    if (trial.asyncSave === true) new CheckpointStager(device).reserve(trainedPart(model), optimizer);
    const graph = hasGraph ? new StepGraph(device) : undefined;
    const context = { device, group, data, model, optimizer, maxGradNorm: trial.maxGradNorm, scaler, graph };
    return () => trainStep(context, trial.batch, 1);
  }, { ...options, ...hasGraph ? { steps: STEPS_TO_GRAPH } : {} });
  return { ...taken, numParameters };
}

/**
 * Estimates one step of a run on one rank. Weights get memory and no values.
 *
 * @throws {ConfigError} if the sizes do not fit each other or the model
 * @throws {UnsupportedError} if there is no such family of models, or an option of it is not implemented
 */
export async function estimateStep(
  config: StepConfig,
  source: ModelSource,
  options: DryRunOptions,
): Promise<StepEstimate> {
  const { worldSize } = options;
  const pool = config.offloadStates === undefined ? undefined : countingPool(config.offloadStates);
  const taken = await dryStep(source, {
    adapter: config.adapter,
    frozenDtype: frozenDtypeOf(config),
    adapt: (model) => adapt(model, config, undefined),
    check: (model) => requireSizes(config, model, worldSize),
    parallelize: (model, run) => parallelize(model, run, config, { optimizerStates: pool }),
    optimizer: (model) => optimizerOf(model, config),
    scaler: (device) => scalerOf(device, config),
    batch: emptyBatch(config, worldSize),
    maxGradNorm: config.maxGradNorm,
    asyncSave: config.asyncSave,
    cudaGraphs: config.cudaGraphs,
  }, options);
  return { ...taken, stateFileBytes: pool?.allocator.stats.inUse ?? 0 };
}

function frozenDtypeOf({ frozenDtype }: StepConfig): "file" | DType {
  return frozenDtype === "file" ? frozenDtype : dtypeFrom(frozenDtype);
}

/** A rank's part of a step, filled with one token; its rows have the sequence length, which is the longest. */
export function emptyBatch(
  sizes: Pick<StepConfig, "globalBatch" | "microBatches" | "sequenceLength"> & Partial<Pick<StepConfig, "packing">>,
  worldSize: number,
): Batch {
  const { globalBatch, microBatches, sequenceLength: seq } = sizes;
  const batch = globalBatch / worldSize / microBatches;
  const tokens = new Int32Array(batch * seq);
  const { packing = "wrapped" } = sizes;
  const given = {
    lengths: packing === "wrapped" ? undefined : new Int32Array(batch).fill(seq),
    documentStarts: packing === "bfd" || packing === "bfd-split" ? tokens : undefined,
  };
  const microBatch = { inputIds: tokens, labels: tokens, batch, seq, ...given, random: { seed: 0, firstSample: 0 } };
  return { microBatches: Array.from({ length: microBatches }, () => microBatch) };
}

/** Largest number of ranks that a refusal tries. */
const MOST_RANKS = 1024;

/**
 * Builds the model of a run, without memory, and estimates a step of it. Returns the model if it fits every rank. Collective.
 *
 * @param hfConfig the model to build, if `config.model` names none
 * @throws {OutOfMemoryError} if it cannot fit, before any memory is allocated: with the largest needs, the number of ranks that
 * would be enough, and the number of micro-batches that would
 * @throws {ConfigError} {@link UnsupportedError} as {@link estimateStep}
 */
export async function planModel(
  run: Pick<Run, "device" | "group" | "localWorldSize">,
  config: RunConfig,
  hfConfig: Readonly<Record<string, unknown>> | undefined,
): Promise<{ readonly model: CausalLm; readonly estimate: StepEstimate }> {
  const source = config.model ?? hfConfig;
  if (source === undefined) {
    const expected = "a Hugging Face folder, as the script brings no model of its own";
    throw new ConfigError([{ path: "--model", expected, got: "nothing" }]);
  }
  const { device, group, group: { rank, size }, localWorldSize } = run;
  const { stagingBytes, strategy, seed, broadcastFromRank0 } = config;
  const here = { device, worldSize: size, localWorldSize, stagingBytes, ...standInOf(group) };
  const estimate = await group.together("estimate a step", () => estimateStep(config, source, { ...here, rank }));
  const shortage = worstShortage(group, needsOf(estimate, device));
  if (shortage === undefined) {
    const adapter = config.adapter === undefined ? {} : { adapter: config.adapter };
    const frozenDtype = frozenDtypeOf(config);
    const model = await openModel(run, source, { seed, broadcastFromRank0, frozenDtype, ...adapter });
    adapt(model, config, typeof source === "string" ? source : undefined);
    return { model, estimate };
  }
  // The number of replicas stays; more ranks share each.
  const replicas = strategy === "fsdp" ? size / shardRanks(run, config.mesh) : 1;
  const fits = async (shards: number): Promise<boolean> => {
    const worldSize = replicas * shards;
    const globalBatch = config.globalBatch / size * worldSize;
    const same = { ...config, globalBatch, mesh: `${replicas}x${shards}` };
    const taken = await estimateStep(same, source, { device, worldSize, ...size > 1 ? standInOf(group) : {} });
    return needsOf(taken, device).every(({ bytes }) => bytes <= shortage.capacity);
  };
  let shards = 2 ** Math.floor(1 + Math.log2(size / replicas));
  while (strategy === "fsdp" && replicas * shards <= MOST_RANKS && !await fits(shards)) shards *= 2;
  const ranks = strategy === "ddp"
    ? "more ranks do not help while each holds all of it: shard it (FSDP)"
    : replicas * shards <= MOST_RANKS
    ? `${replicas * shards} ranks would be enough`
    : "no number of ranks is enough with this batch and sequence";
  const samples = config.globalBatch / size;
  throw await shortageError({
    ...{ shortage, numParameters: estimate.numParameters, worldSize: size, samples, ranks },
    microBatches: config.microBatches,
    bytesIn: async (parts) => {
      // Gradients add up from the second part on, so further ones need no more.
      const microBatches = Math.min(parts, 3);
      const globalBatch = samples / parts * microBatches * size;
      const taken = await estimateStep({ ...config, microBatches, globalBatch }, source, {
        ...here,
        rank: shortage.rank,
      });
      return Math.max(...needsOf(taken, device).map(({ bytes }) => bytes));
    },
  });
}

/** The memory that a step needs on a rank's device and in the host memory beside it, which has the same size. */
function needsOf({ highest, peakBytes, terms, offloaded }: StepEstimate, device: Device): readonly MemoryNeed[] {
  const { capacity } = device.allocator.stats;
  return [
    { where: device.name, bytes: highest, peakBytes, terms, capacity },
    { ...offloaded, where: POOL_NAME, bytes: offloaded.peakBytes, capacity },
  ];
}

/** One line for each combination of dtypes, with its units. */
function ledgerLines(units: readonly { readonly name: string; readonly dtypes: DtypeLedger }[]): readonly string[] {
  const textOf = ({ dtypes }: typeof units[number]): string =>
    Object.entries(dtypes).map(([what, dtype]) => `${what} ${dtype}`).join(", ");
  return Array.from(Map.groupBy(units, textOf), ([text, members]) => {
    const [first, last] = [members[0]?.name, members.at(-1)?.name];
    const names = members.length === 1 ? `'${first}'` : `${members.length} units, '${first}' to '${last}'`;
    return `Dtypes of ${names}: ${text}`;
  });
}

/** Options of {@link parallelize} besides the configuration. */
interface ParallelizeOptions {
  readonly optimizerStates?: StatePool | undefined;
  readonly note?: ((text: string) => void) | undefined;
}

/**
 * Shards a model over the ranks, or replicates it, and checkpoints its blocks, as the configuration says.
 *
 * @param options `optimizerStates`: pool of the optimizer's states; `note`: receives notices about plan and dtypes
 * @throws {ConfigError} if the plan names modules that the model does not have, the mesh has another number of ranks,
 * checkpointing is asked for by two keys, or a replicated model is to be offloaded
 */
export function parallelize(
  model: CausalLm,
  run: Pick<Run, "group" | "localWorldSize">,
  config: StepConfig,
  { optimizerStates, note }: ParallelizeOptions = {},
): void {
  const precision = { paramDtype: dtypeFrom(config.precision), reduceDtype: float32 };
  requireCompatible(config);
  const checkpointing = checkpointingOf(config);
  if (checkpointing !== undefined) applyActivationCheckpointing(model.layers, checkpointing);
  if (config.strategy === "ddp") {
    replicate(model, { mesh: run.group, precision });
    const dtypes = ledgerOf(resolvePrecision(precision));
    return ledgerLines([{ name: model.constructor.name, dtypes }]).forEach((line) => note?.(line));
  }
  const mesh = meshOf(run, config.mesh);
  const offloadPolicy = config.cpuOffload ? cpuOffloadPolicy({ optimizerStates }) : undefined;
  const root = shardModel(model, { ...config, mesh, precision, offloadPolicy, note });
  const units = root.units().map(({ name, policy }) => ({ name, dtypes: ledgerOf(policy) }));
  ledgerLines(units).forEach((line) => note?.(line));
}

/** The loss scaler of a run: in float16, whose smallest number is 6e-8, small gradients would vanish without it. */
export function scalerOf(device: Device, { precision }: StepConfig): GradScaler | undefined {
  return dtypeFrom(precision) === float16 ? new GradScaler(device) : undefined;
}

/** The optimizer of a run. */
export function optimizerOf(model: CausalLm, config: StepConfig): AdamW {
  const { schedule, steps, beta1, beta2, weightDecay } = config;
  const usual = model.files?.folder === undefined ? "fromScratch" : "fineTuning";
  const usualRate = PEAK_LEARNING_RATES[hasAdapter(model) ? "adapter" : usual];
  const { learningRate = usualRate, warmupSteps = usualWarmupSteps(steps) } = config;
  const trained = [...model.parameters()].filter(({ requiresGrad }) => requiresGrad);
  return new AdamW(trained, {
    learningRate,
    schedule: SCHEDULES[schedule]({ warmupSteps: Math.min(warmupSteps, steps), steps }),
    betas: [beta1, beta2],
    weightDecay,
  });
}
