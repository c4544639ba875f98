/**
 * An estimate of a step: the model is built without memory and takes the step on a dry device.
 *
 * @module
 */
import { trainedPart } from "../adapters/files.ts";
import { CheckpointStager } from "../checkpoint/sharded/stager.ts";
import type { Batch } from "../data/micro_batch.ts";
import type { Device } from "../device/device.ts";
import { countingPool } from "../device/state_pool.ts";
import type { DType } from "../dtype.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { Logger } from "../runtime/log.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import type { GradScaler } from "../optim/grad_scaler.ts";
import { adapt } from "./adapter_config.ts";
import { axesOf, dataRanks } from "./axes_config.ts";
import { requireSizes } from "./checks.ts";
import type { StepConfig } from "./config.ts";
import { type DryRun, dryRun, type DryRunOptions } from "./dry_run.ts";
import { type ModelSource, openModel } from "./open_model.ts";
import { parallelize } from "./parallelize.ts";
import { preferenceLossOf, requirePreferenceModel } from "./preference_config.ts";
import type { Distillation } from "./distillation_step.ts";
import { requireObjective } from "./open_preference.ts";
import type { PreferenceObjective } from "./preference_step.ts";
import { dryReference } from "./reference.ts";
import { optimizerOf } from "./optimizer.ts";
import { frozenDtypeOf, scalerOf } from "./parts.ts";
import type { Run } from "./run.ts";
import { openTeacher } from "./teacher.ts";
import { trainStep } from "./step.ts";
import { withMeasuredStages } from "./stage_split.ts";
import { StepGraph, STEPS_TO_GRAPH } from "./step_graph.ts";

/** Memory, communication and operations of a model's step. */
export interface StepEstimate extends DryRun {
  /** Parameters of the model. */
  readonly numParameters: number;
  /** Bytes of the file of optimizer states; 0 without one. */
  readonly stateFileBytes: number;
  /** Blocks of each stage, where they were given or measured; else empty. */
  readonly ppLayers: readonly number[];
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
  readonly optimizer: (model: CausalLm) => Optimizer;
  /** Scales the loss. @default no scaler */
  readonly scaler?: (device: Device) => GradScaler | undefined;
  readonly batch: Batch;
  readonly maxGradNorm: number;
  /** Allocates memory for the copy of an asynchronous save. @default false */
  readonly asyncSave?: boolean;
  /** The objective on pairs of answers. @default text is learned */
  readonly preference?: (model: CausalLm) => PreferenceObjective | undefined;
  /** Opens a teacher. @default none */
  readonly distillation?: (run: Run, model: CausalLm) => Promise<Distillation | undefined>;
  /** Captures the step, so that the memory of its graph counts. @default false */
  readonly cudaGraphs?: boolean;
  /** Receives notices about the model. @default standard error */
  readonly log?: Logger | undefined;
}

/** Does a dry run of a model's step on one rank. Weights get memory and no values. */
export async function dryStep(
  source: ModelSource,
  trial: StepTrial,
  options: DryRunOptions,
): Promise<Omit<StepEstimate, "stateFileBytes" | "ppLayers">> {
  let numParameters = 0;
  const hasGraph = trial.cudaGraphs === true;
  const taken = await dryRun(async (run) => {
    const { device, group, data } = run;
    const model = await openModel(run, source, {
      frozenDtype: trial.frozenDtype ?? "file",
      ...trial.adapter === undefined ? {} : { adapter: trial.adapter },
      ...trial.log === undefined ? {} : { log: trial.log },
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
    const preference = trial.preference?.(model);
    if (preference !== undefined) model.eval();
    const distillation = await trial.distillation?.(run, model);
    const { maxGradNorm } = trial;
    const context = { device, group, data, model, optimizer, maxGradNorm, scaler, graph, preference, distillation };
    return () => trainStep(context, trial.batch, 1);
  }, { ...options, ...hasGraph ? { steps: STEPS_TO_GRAPH } : {} });
  return { ...taken, numParameters };
}

/**
 * Estimates one step of a run on one rank. Weights get memory and no values.
 *
 * @param log receives notices about the model. @default standard error
 * @throws {ConfigError} if the sizes do not fit each other or the model
 * @throws {UnsupportedError} if there is no such family of models, or an option of it is not implemented
 */
export async function estimateStep(
  given: StepConfig,
  source: ModelSource,
  options: DryRunOptions,
  log?: Logger,
): Promise<StepEstimate> {
  const { worldSize } = options;
  const config = await withMeasuredStages(given, source, options);
  const readers = dataRanks(config, worldSize);
  const pool = config.offloadStates === undefined ? undefined : countingPool(config.offloadStates);
  const taken = await dryStep(source, {
    adapter: config.adapter,
    frozenDtype: frozenDtypeOf(config),
    adapt: (model) => adapt(model, config, undefined),
    check: (model) => {
      requireSizes(config, model, readers);
      requireObjective(config);
      if (config.preference !== undefined) requirePreferenceModel(model);
    },
    parallelize: (model, run) => parallelize(model, run, config, { optimizerStates: pool }),
    optimizer: (model) => optimizerOf(model, config),
    scaler: (device) => scalerOf(device, config),
    batch: emptyBatch(config, readers),
    maxGradNorm: config.maxGradNorm,
    asyncSave: config.asyncSave,
    preference: (model) => {
      const loss = preferenceLossOf(config);
      return loss && { loss, reference: dryReference(model, config) };
    },
    distillation: (run, model) => openTeacher(run, model, config),
    cudaGraphs: config.cudaGraphs,
    log,
  }, { axes: axesOf(config, worldSize), ...options });
  return { ...taken, stateFileBytes: pool?.allocator.stats.inUse ?? 0, ppLayers: config.ppLayers };
}

/** A rank's part of a step of `worldSize` ranks that read other rows than each other, filled with one token; its rows have the sequence length, which is the longest. */
export function emptyBatch(
  sizes:
    & Pick<StepConfig, "globalBatch" | "microBatches" | "sequenceLength">
    & Partial<Pick<StepConfig, "packing" | "preference">>,
  worldSize: number,
): Batch {
  const { globalBatch, microBatches, sequenceLength: seq, preference } = sizes;
  const samples = globalBatch / worldSize / microBatches;
  const batch = preference === undefined ? samples : 2 * samples;
  const tokens = new Int32Array(batch * seq);
  const { packing = "wrapped" } = sizes;
  const given = {
    lengths: packing === "wrapped" && preference === undefined ? undefined : new Int32Array(batch).fill(seq),
    pairs: preference === undefined ? undefined : new Int32Array(samples),
    isDesirable: preference === "kto" ? new Uint8Array(samples) : undefined,
    documentStarts: packing === "bfd" || packing === "bfd-split" ? tokens : undefined,
  };
  const microBatch = { inputIds: tokens, labels: tokens, batch, seq, ...given, random: { seed: 0, firstSample: 0 } };
  return { microBatches: Array.from({ length: microBatches }, () => microBatch) };
}
