/**
 * The estimate of a step on the ranks that matter: by `fullyshard estimate`, and by the page that asks for the same.
 *
 * @module
 */
import { at } from "../at.ts";
import { slotsOf } from "../axes/pipeline_schedule.ts";
import { problemsOf } from "../config/problems.ts";
import type { ResolvedConfig } from "../config/resolve.ts";
import { OWN_ATTENTION } from "../device/attention.ts";
import { ConfigError } from "../errors.ts";
import type { Section } from "../config/section.ts";
import type { Logger } from "../runtime/log.ts";
import { dataRanks } from "../train/axes_config.ts";
import type { ParallelConfig, StepConfig } from "../train/config.ts";
import { estimateStep, type StepEstimate } from "../train/estimate.ts";
import type { ModelSource } from "../train/open_model.ts";
import { predictStages, predictTime, type Speeds, type StepTime } from "../train/timeline.ts";
import { ESTIMATE_SECTIONS, type EstimateConfig, USUAL } from "./estimate_config.ts";

/** The keys of the command. */
export type EstimateInput = ResolvedConfig<typeof ESTIMATE_SECTIONS>;

/** These, with those of a training that an estimate has no flags for. */
export type EstimateKeys = EstimateConfig & StepConfig;

/** An estimate. */
export interface Estimate {
  readonly config: EstimateKeys;
  /** The rank of the estimate. */
  readonly rank: number;
  readonly step: StepEstimate;
  /** Undefined where no speeds are stated. */
  readonly time: StepTime | undefined;
}

/** Facts beside the arguments. */
export interface EstimateSurroundings {
  /** The model. @default the folder or file that `--model` names */
  readonly source?: ModelSource | undefined;
  /** Ranks of a host, where the arguments do not say. */
  readonly localWorldSize?: number | undefined;
  /** Receives notices about the model. @default standard error */
  readonly log?: Logger;
}

/**
 * The keys of the command from values by their names, for a program that has no arguments.
 *
 * @throws {ConfigError} for values that are wrong, and keys that there are not
 */
export function estimateInput(values: Readonly<Record<string, unknown>>): EstimateInput {
  const left = new Set(Object.keys(values));
  const parse = <Value extends object>({ schema }: Section<Value>): Value => {
    const own = Object.fromEntries(Object.entries(values).filter(([name]) => name in schema.shape));
    for (const name of Object.keys(own)) left.delete(name);
    const result = schema.safeParse(own);
    if (result.success) return result.data;
    throw new ConfigError(result.error.issues.flatMap((issue) => problemsOf(issue, own, () => ({}))));
  };
  const [own, adapter, preference, parallel, axes, foreign] = ESTIMATE_SECTIONS;
  const input = { ...parse(adapter), ...parse(preference), ...parse(parallel), ...parse(axes), ...parse(foreign) };
  const found = { ...input, ...parse(own) };
  const unknown = [...left].map((path) => ({ path, expected: "no such key", got: String(values[path]) }));
  if (unknown.length > 0) throw new ConfigError(unknown);
  return found;
}

/**
 * Estimates a step.
 *
 * @throws {ConfigError} for sizes that do not fit each other or the model
 * @throws {FileError} {@link CheckpointError} if there is no model configuration
 * @throws {UnsupportedError} for a model that there is not
 */
export async function estimateOf(resolved: EstimateInput, surroundings: EstimateSurroundings = {}): Promise<Estimate> {
  const { nproc: worldSize, rank: asked, batch, seq: sequenceLength, microBatches, cpuMath, registersMemory } =
    resolved;
  if (asked !== undefined && asked >= worldSize) {
    throw new ConfigError([{ path: "--rank", expected: `a rank below ${worldSize}`, got: String(asked) }]);
  }
  const speeds = speedsOf(resolved);
  const globalBatch = batch * microBatches * dataRanks(resolved, worldSize);
  const config: EstimateKeys = { ...USUAL, ...resolved, sequenceLength, globalBatch };
  const localWorldSize = resolved.ranksPerHost ?? surroundings.localWorldSize;
  const place = isOnCard(resolved) ? { device: "cuda", registersMemory } as const : { cpuMath };
  const perStage = worldSize / config.ppSize;
  const source = surroundings.source ?? config.model;
  // One rank of each stage, as ranks of a stage need the same: the rank that was asked for, or the first one.
  const ranks = Array.from({ length: config.ppSize }, (_, stage) => {
    return asked !== undefined && Math.floor(asked / perStage) === stage ? asked : stage * perStage;
  });
  const stages: StepEstimate[] = [];
  for (const rank of ranks) {
    stages.push(await estimateStep(config, source, { worldSize, rank, localWorldSize, ...place }, surroundings.log));
  }
  const most = Math.max(...stages.map(({ peakBytes }) => peakBytes));
  const chosen = asked === undefined ? stages.findIndex(({ peakBytes }) => peakBytes === most) : ranks.indexOf(asked);
  const [rank, step] = [at(ranks, chosen, "rank of stage"), at(stages, chosen, "stage")];
  return { config, rank, step, time: speeds === undefined ? undefined : timeOf(step, stages, speeds, config) };
}

/** The time of a step: of a model in stages with the time for which ranks wait for each other. */
function timeOf(step: StepEstimate, stages: readonly StepEstimate[], speeds: Speeds, config: StepConfig): StepTime {
  const own = predictTime(step, speeds);
  if (stages.length === 1) return own;
  const { ppSchedule: schedule, ppStagesPerRank = schedule === "interleaved" ? 2 : 1, microBatches } = config;
  const sizes = { ranks: stages.length, stagesPerRank: ppStagesPerRank, microBatches };
  const slots = slotsOf(schedule, sizes).length;
  return predictStages(stages.map((stage) => predictTime(stage, speeds)), own, {
    slots,
    busy: 2 * microBatches * ppStagesPerRank,
  });
}

/**
 * True if a card computes.
 *
 * @throws {ConfigError} if the CPU is to do what only cards do
 */
function isOnCard({ device, cudaGraphs, attention }: EstimateConfig & ParallelConfig): boolean {
  const ofCards = { cudaGraphs, attention: attention !== OWN_ATTENTION };
  const asked = Object.entries(ofCards).filter(([, isAsked]) => isAsked).map(([path]) => path);
  if (device !== undefined && device !== "cuda" && asked.length > 0) {
    throw new ConfigError(asked.map((path) => ({ path, expected: "device cuda", got: `'${device}'` })));
  }
  return device === undefined ? asked.length > 0 : device === "cuda";
}

/** Speeds in operations and bytes a second; undefined where none is stated. */
function speedsOf({ tflops, bandwidth, hostBandwidth = bandwidth }: EstimateConfig): Speeds | undefined {
  if (tflops === undefined && bandwidth === undefined && hostBandwidth === undefined) return undefined;
  if (tflops !== undefined && bandwidth !== undefined && hostBandwidth !== undefined) {
    return { flops: tflops * 1e12, bandwidth: bandwidth * 1e9, hostBandwidth: hostBandwidth * 1e9 };
  }
  const path = tflops === undefined ? "--tflops" : "--bandwidth";
  throw new ConfigError([{ path, expected: "both speeds, or none", got: "nothing" }]);
}
