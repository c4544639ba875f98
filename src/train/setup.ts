/**
 * From a model's config to a model that trains: built without memory, its step tried against what a rank has, sharded or
 * replicated, then initialized or loaded.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Batch } from "../data/loader.ts";
import { replicate } from "../ddp/replicate.ts";
import type { Device } from "../device/device.ts";
import { dtypeFrom, float16, float32 } from "../dtype.ts";
import { ConfigError, OutOfMemoryError } from "../errors.ts";
import { fullyShard } from "../fsdp/fully_shard.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { AdamW } from "../optim/adamw.ts";
import { GradScaler } from "../optim/grad_scaler.ts";
import { SCHEDULES } from "../optim/schedule.ts";
import { ledgerOf, resolvePrecision } from "../parallel/precision.ts";
import { countOf } from "../words.ts";
import { requireSizes } from "./checks.ts";
import { PEAK_LEARNING_RATES, type RunConfig, type StepConfig, usualWarmupSteps } from "./config.ts";
import { describeSharding, ledgerLines } from "./describe.ts";
import { type DryRun, dryRun, type DryRunOptions } from "./dry_run.ts";
import { type ModelSource, openModel } from "./open_model.ts";
import type { Run } from "./run.ts";
import { trainStep } from "./step.ts";

/** What a step of a model takes. */
export interface StepEstimate extends DryRun {
  /** Parameters of the model. */
  readonly numParameters: number;
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
  let numParameters = 0;
  const run = await dryRun(async (run) => {
    const { device, group } = run;
    const model = await openModel(run, source);
    requireSizes(config, model, group.size);
    for (const { numel } of model.parameters()) numParameters += numel;
    parallelize(model, group, config);
    await model.load();
    const optimizer = optimizerOf(model, config);
    const context = {
      device,
      group,
      model,
      optimizer,
      maxGradNorm: config.maxGradNorm,
      scaler: scalerOf(device, config),
    };
    const batch = emptyBatch(config, group.size);
    return () => trainStep(context, batch, 1);
  }, options);
  return { ...run, numParameters };
}

/** A rank's part of a step, all of one token. */
function emptyBatch({ globalBatch, microBatches, sequenceLength: seq }: StepConfig, worldSize: number): Batch {
  const batch = globalBatch / worldSize / microBatches;
  const tokens = new Int32Array(batch * seq);
  const microBatch = { inputIds: tokens, labels: tokens, batch, seq };
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
  run: Pick<Run, "device" | "group">,
  config: RunConfig,
  hfConfig: Readonly<Record<string, unknown>> | undefined,
): Promise<{ readonly model: CausalLm; readonly estimate: StepEstimate }> {
  const source = config.model ?? hfConfig;
  if (source === undefined) {
    const expected = "a Hugging Face folder, as the script brings no model of its own";
    throw new ConfigError([{ path: "--model", expected, got: "nothing" }]);
  }
  const { device, group, group: { rank, size } } = run;
  const { stagingBytes, strategy } = config;
  const standsFor = group.stagingBytes > 0 ? "shm" : "loopback"; // mapped, or copied
  const estimate = await estimateStep(config, source, { device, rank, worldSize: size, standsFor, stagingBytes });
  const { capacity } = device.allocator.stats;
  if (estimate.highest <= capacity) {
    return { model: await openModel(run, source, { seed: config.seed }), estimate };
  }
  const fits = async (worldSize: number): Promise<boolean> => {
    const same = { ...config, globalBatch: config.globalBatch / size * worldSize };
    return (await estimateStep(same, source, { device, worldSize })).highest <= capacity;
  };
  let enough = 2 ** Math.floor(1 + Math.log2(size));
  while (strategy === "fsdp" && enough <= MOST_RANKS && !await fits(enough)) enough *= 2;
  const remedy = strategy === "ddp"
    ? "more ranks do not help while each holds all of it: shard it (FSDP)"
    : enough <= MOST_RANKS
    ? `${enough} ranks would be enough`
    : "no number of ranks is enough with this batch and sequence";
  const { highest, peakBytes, terms, numParameters } = estimate;
  const most = Object.entries(terms).sort(([, a], [, b]) => b - a).map(([name, bytes]) => `${name} ${bytes}`);
  const detail =
    `The model of ${countOf(numParameters, "parameter")} does not fit ${countOf(size, "rank")}: a rank needs ` +
    `${peakBytes} bytes at once (${most.join(", ")}); ${remedy}`;
  throw new OutOfMemoryError(device.name, highest, 0, capacity, detail);
}

/**
 * Shards a model over the ranks, or replicates it, as the configuration says.
 *
 * @returns what to tell of the dtypes
 */
export function parallelize(model: CausalLm, group: ProcessGroup, config: StepConfig): readonly string[] {
  const { strategy, reshardAfterForward } = config;
  const precision = { paramDtype: dtypeFrom(config.precision), reduceDtype: float32 };
  if (strategy === "ddp") {
    replicate(model, { mesh: group, precision });
    return ledgerLines([{ name: model.constructor.name, dtypes: ledgerOf(resolvePrecision(precision)) }]);
  }
  for (const block of model.layers) fullyShard(block, { mesh: group, precision, reshardAfterForward });
  // The root's parameters are needed at both ends of forward and backward, so they stay in between.
  fullyShard(model, { mesh: group, precision });
  return ledgerLines(describeSharding(model));
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
