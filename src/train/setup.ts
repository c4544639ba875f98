/**
 * From a model's config to a model that trains: built without memory, its step tried against what a rank has, sharded or
 * replicated, then initialized or loaded.
 *
 * @module
 */
import { CheckpointStager } from "../checkpoint/sharded/stager.ts";
import { standInOf } from "../comm/data/dry.ts";
import type { Batch } from "../data/loader.ts";
import { replicate } from "../ddp/replicate.ts";
import type { Device } from "../device/device.ts";
import { POOL_NAME } from "../device/offload.ts";
import { countingPool, type StatePool } from "../device/state_pool.ts";
import { dtypeFrom, float16, float32 } from "../dtype.ts";
import { ConfigError, OutOfMemoryError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { applyActivationCheckpointing } from "../nn/activation_checkpointing.ts";
import { AdamW } from "../optim/adamw.ts";
import { GradScaler } from "../optim/grad_scaler.ts";
import { SCHEDULES } from "../optim/schedule.ts";
import { cpuOffloadPolicy } from "../parallel/offload.ts";
import { type DtypeLedger, ledgerOf, resolvePrecision } from "../parallel/precision.ts";
import { shardModel } from "../plans/shard_model.ts";
import { countOf } from "../words.ts";
import { checkpointingOf, requireCompatible, requireSizes } from "./checks.ts";
import { PEAK_LEARNING_RATES, type RunConfig, type StepConfig, usualWarmupSteps } from "./config.ts";
import { type DryRun, dryRun, type DryRunOptions } from "./dry_run.ts";
import { meshOf, shardRanks } from "./mesh.ts";
import { type ModelSource, openModel } from "./open_model.ts";
import type { Run } from "./run.ts";
import { trainStep } from "./step.ts";
import { StepGraph, STEPS_TO_GRAPH } from "./step_graph.ts";

/** What a step of a model takes. */
export interface StepEstimate extends DryRun {
  /** Parameters of the model. */
  readonly numParameters: number;
  /** Bytes of the file of optimizer states; 0 without one. */
  readonly stateFileBytes: number;
}

/** A step that is to be tried. */
interface StepTrial {
  /** Refuses a model that the step does not fit. */
  readonly check?: (model: CausalLm) => void;
  /** Shards or replicates the model. */
  readonly parallelize: (model: CausalLm, run: Run) => void;
  readonly optimizer: (model: CausalLm) => AdamW;
  /** What scales the loss. @default nothing */
  readonly scaler?: (device: Device) => GradScaler | undefined;
  readonly batch: Batch;
  readonly maxGradNorm: number;
  /** Whether there is memory for the copy of an asynchronous save. @default false */
  readonly asyncSave?: boolean;
  /** Whether a step is captured, so that the memory of its graph counts. @default false */
  readonly cudaGraphs?: boolean;
}

/** Tries a step of a model on one rank. Weights get memory and no values. */
export async function dryStep(
  source: ModelSource,
  trial: StepTrial,
  options: DryRunOptions,
): Promise<Omit<StepEstimate, "stateFileBytes">> {
  let numParameters = 0;
  const hasGraph = trial.cudaGraphs === true;
  const taken = await dryRun(async (run) => {
    const { device, group, data } = run;
    const model = await openModel(run, source);
    trial.check?.(model);
    for (const { numel } of model.parameters()) numParameters += numel;
    trial.parallelize(model, run);
    await model.load();
    const optimizer = trial.optimizer(model);
    const scaler = trial.scaler?.(device);
    if (trial.asyncSave === true) new CheckpointStager(device).reserve(model, optimizer);
    const graph = hasGraph ? new StepGraph(device) : undefined;
    const context = { device, group, data, model, optimizer, maxGradNorm: trial.maxGradNorm, scaler, graph };
    return () => trainStep(context, trial.batch, 1);
  }, { ...options, ...hasGraph ? { steps: STEPS_TO_GRAPH } : {} });
  return { ...taken, numParameters };
}

/**
 * What one step of a run takes on one rank. Weights get memory and no values.
 *
 * @throws {ConfigError} if the sizes do not fit each other or the model
 * @throws {UnsupportedError} if there is no such family of models, or it has something that is not there yet
 */
export async function estimateStep(
  config: StepConfig,
  source: ModelSource,
  options: DryRunOptions,
): Promise<StepEstimate> {
  const { worldSize } = options;
  const pool = config.offloadStates === undefined ? undefined : countingPool(config.offloadStates);
  const taken = await dryStep(source, {
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

/** A rank's part of a step, all of one token. */
export function emptyBatch(
  sizes: Pick<StepConfig, "globalBatch" | "microBatches" | "sequenceLength">,
  worldSize: number,
): Batch {
  const { globalBatch, microBatches, sequenceLength: seq } = sizes;
  const batch = globalBatch / worldSize / microBatches;
  const tokens = new Int32Array(batch * seq);
  const microBatch = { inputIds: tokens, labels: tokens, batch, seq, random: { seed: 0, firstSample: 0 } };
  return { microBatches: Array.from({ length: microBatches }, () => microBatch) };
}

/** Most ranks that a refusal tries. */
const MOST_RANKS = 1024;

/**
 * Builds the model of a run, without memory, and tries a step of it. Gives the model if it fits.
 *
 * @param hfConfig what to build, where `config.model` names none
 * @throws {OutOfMemoryError} if it cannot fit, before any memory is taken: with what it needs most for, and the ranks that would
 * be enough
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
  const estimate = await estimateStep(config, source, {
    ...{ device, rank, worldSize: size, localWorldSize, stagingBytes, ...standInOf(group) },
  });
  const { capacity } = device.allocator.stats;
  const fitsHere = ({ highest, offloaded }: StepEstimate): boolean =>
    highest <= capacity && offloaded.peakBytes <= capacity; // host memory has the same size
  if (fitsHere(estimate)) {
    return { model: await openModel(run, source, { seed, broadcastFromRank0 }), estimate };
  }
  // Copies of what is sharded stay as many as they are; more ranks share each.
  const replicas = strategy === "fsdp" ? size / shardRanks(run, config.mesh) : 1;
  const fits = async (shards: number): Promise<boolean> => {
    const worldSize = replicas * shards;
    const globalBatch = config.globalBatch / size * worldSize;
    const same = { ...config, globalBatch, mesh: `${replicas}x${shards}` };
    return fitsHere(await estimateStep(same, source, { device, worldSize, ...size > 1 ? standInOf(group) : {} }));
  };
  let shards = 2 ** Math.floor(1 + Math.log2(size / replicas));
  while (strategy === "fsdp" && replicas * shards <= MOST_RANKS && !await fits(shards)) shards *= 2;
  const remedy = strategy === "ddp"
    ? "more ranks do not help while each holds all of it: shard it (FSDP)"
    : replicas * shards <= MOST_RANKS
    ? `${replicas * shards} ranks would be enough`
    : "no number of ranks is enough with this batch and sequence";
  const perPart = config.globalBatch / size / config.microBatches;
  const smaller = perPart > 1
    ? `, or '--micro-batches ${2 * config.microBatches}', so that a rank computes ${
      countOf(Math.ceil(perPart / 2), "sample")
    } at once`
    : "";
  const { highest, numParameters, offloaded } = estimate;
  const onDevice = highest > capacity;
  const { peakBytes, terms } = onDevice ? estimate : offloaded;
  const most = Object.entries(terms).sort(([, a], [, b]) => b - a).map(([name, bytes]) => `${name} ${bytes}`);
  const detail =
    `The model of ${countOf(numParameters, "parameter")} does not fit ${countOf(size, "rank")}: a rank needs ` +
    `${peakBytes} bytes at once (${most.join(", ")}); ${remedy}${smaller}`;
  throw new OutOfMemoryError(onDevice ? device.name : POOL_NAME, onDevice ? highest : peakBytes, 0, capacity, detail);
}

/** One line for each ledger of dtypes, with the units that have it. */
function ledgerLines(units: readonly { readonly name: string; readonly dtypes: DtypeLedger }[]): readonly string[] {
  const textOf = ({ dtypes }: typeof units[number]): string =>
    Object.entries(dtypes).map(([what, dtype]) => `${what} ${dtype}`).join(", ");
  return Array.from(Map.groupBy(units, textOf), ([text, members]) => {
    const [first, last] = [members[0]?.name, members.at(-1)?.name];
    const names = members.length === 1 ? `'${first}'` : `${members.length} units, '${first}' to '${last}'`;
    return `Dtypes of ${names}: ${text}`;
  });
}

/** What {@link parallelize} may be given besides the configuration. */
interface ParallelizeOptions {
  readonly optimizerStates?: StatePool | undefined;
  readonly note?: ((text: string) => void) | undefined;
}

/**
 * Shards a model over the ranks, or replicates it, and checkpoints its blocks, as the configuration says.
 *
 * @param options `optimizerStates`: where the optimizer's states are to rest; `note`: takes what a user should know of plan and dtypes
 * @throws {ConfigError} if the plan names what the model does not have, the mesh has another number of ranks, checkpointing is
 * asked for in two ways, or a replicated model is to be offloaded
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

/** What scales the loss of a run: in float16, whose smallest number is 6e-8, gradients would vanish. */
export function scalerOf(device: Device, { precision }: StepConfig): GradScaler | undefined {
  return dtypeFrom(precision) === float16 ? new GradScaler(device) : undefined;
}

/** The optimizer of a run. */
export function optimizerOf(model: CausalLm, config: StepConfig): AdamW {
  const { schedule, steps, beta1, beta2, weightDecay } = config;
  const usualRate = PEAK_LEARNING_RATES[model.files?.folder === undefined ? "fromScratch" : "fineTuning"];
  const { learningRate = usualRate, warmupSteps = usualWarmupSteps(steps) } = config;
  return new AdamW(model.parameters(), {
    learningRate,
    schedule: SCHEDULES[schedule]({ warmupSteps: Math.min(warmupSteps, steps), steps }),
    betas: [beta1, beta2],
    weightDecay,
  });
}
