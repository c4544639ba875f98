/**
 * Pipeline parallelism: the ranks of an axis have stages of a model, which are consecutive blocks. Rows go through the stages in
 * micro-batches: a stage sends what its blocks give to the rank of the next stage, and gradients come back. The first stage has what is
 * before the blocks, the last one what is behind them, as transformers' `pp_plan`s say. A weight that both use, such as a tied
 * embedding, is kept by both, which add up its gradients.
 *
 * @module
 */
import { at } from "../at.ts";
import type { DeviceMesh } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import { type DType, float32 } from "../dtype.ts";
import { ArgumentError, UnsupportedError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { Module } from "../nn/module.ts";
import { placementAxis } from "../parallel/cut.ts";
import { requireOneAxis } from "../parallel/ranks.ts";
import { emptyShard, isKeptHere } from "../tensor/owners.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { countOf } from "../words.ts";
import { PIPELINE_SCHEDULES, type PipelineSchedule } from "./pipeline_schedule.ts";
import { divideLayers, type PipelineSplit } from "./pipeline_split.ts";

/** Consecutive blocks of a model. */
export interface PipelineStage {
  /** The first block. */
  readonly begin: number;
  /** The block behind the last. */
  readonly end: number;
}

/** Options of {@link parallelizePipeline}. */
export interface PipelineOptions {
  /** Order of forwards and backwards. @default 1f1b */
  readonly schedule?: PipelineSchedule | undefined;
  /** Stages of each rank: 1 by the schedule `1f1b`, at least 2 by `interleaved`. @default 1, or 2 if interleaved */
  readonly stagesPerRank?: number | undefined;
  /** The way of dividing blocks into stages. @default layers */
  readonly split?: PipelineSplit | undefined;
  /** The dtype of hidden states between blocks: `paramDtype` of the precision that the model is sharded with. @default float32 */
  readonly dtype?: DType | undefined;
}

const KNOWN_OPTIONS: KnownKeys<PipelineOptions> = { schedule: true, stagesPerRank: true, split: true, dtype: true };

/** A model's stages, as one rank sees them. Made by {@link parallelizePipeline}. */
export class Pipeline {
  /** The ranks that have the stages. */
  readonly group: ProcessGroup;
  /** Order of forwards and backwards. */
  readonly schedule: PipelineSchedule;
  /** Stages of each rank. */
  readonly stagesPerRank: number;
  /** All stages, in the order of the blocks. Rank r has stages r, r + ranks, …. */
  readonly stages: readonly PipelineStage[];
  /** The dtype of hidden states between blocks. */
  readonly dtype: DType;
  /** The blocks that this rank has. */
  readonly layers: readonly Module[];
  readonly #stagesOf: ReadonlyMap<Parameter, readonly number[]>;

  /** Use {@link parallelizePipeline}. */
  constructor(
    model: CausalLm,
    group: ProcessGroup,
    parts: Pick<Pipeline, "schedule" | "stagesPerRank" | "stages" | "dtype">,
  ) {
    this.group = group;
    this.schedule = parts.schedule;
    this.stagesPerRank = parts.stagesPerRank;
    this.stages = parts.stages;
    this.dtype = parts.dtype;
    this.#stagesOf = stagesOf(model, parts.stages);
    this.layers = model.layers.filter((_, i) =>
      parts.stages.findIndex(({ end }) => i < end) % group.size === group.rank
    );
  }

  /** The rank that has a stage. */
  rankOf(stage: number): number {
    return stage % this.group.size;
  }

  /** The stages that use a parameter, ascending. */
  stagesOf(parameter: Parameter): readonly number[] {
    return this.#stagesOf.get(parameter) ?? [0];
  }

  /** True if gradients flow into a stage from the stage behind it: if a parameter of it or before it is trained. */
  hasGradient(stage: number): boolean {
    return [...this.#stagesOf].some(([{ requiresGrad }, [first = 0]]) => requiresGrad && first <= stage);
  }
}

/** The stages that use each parameter of a model. */
function stagesOf(model: CausalLm, stages: readonly PipelineStage[]): ReadonlyMap<Parameter, readonly number[]> {
  const found = new Map<Parameter, Set<number>>();
  const add = (module: Module, stage: number): void => {
    for (const parameter of module.parameters()) {
      found.set(parameter, (found.get(parameter) ?? new Set()).add(stage));
    }
  };
  const { embeddings, tail } = model.parts;
  for (const module of embeddings) add(module, 0);
  for (const [stage, { begin, end }] of stages.entries()) {
    for (const block of model.layers.slice(begin, end)) add(block, stage);
  }
  for (const module of tail) add(module, stages.length - 1);
  // What else there is, such as a norm behind the embedding, is before the blocks.
  return new Map([...model.parameters()].map((parameter) => [
    parameter,
    [...found.get(parameter) ?? [0]].sort((a, b) => a - b),
  ]));
}

/** Refuses models whose parts a pipeline cannot have yet. */
function requireDivisible(model: CausalLm, { size }: ProcessGroup): void {
  if (model.pipeline !== undefined) {
    throw new ArgumentError("Cannot divide the model into stages: its ranks have stages of it already");
  }
  const refuse = (why: string): never => {
    throw new UnsupportedError(`Cannot divide ${model.constructor.name} into stages over ${size} ranks: ${why}`);
  };
  for (const [name, module] of model.namedModules()) {
    if (module.isAdapted) {
      refuse(`'${name}' has an adapter, and adapters are not trained in stages yet; merge it first`);
    }
  }
  for (const [name, { quantized }] of model.namedParameters()) {
    if (quantized !== undefined) refuse(`'${name}' is quantized to ${quantized.name}; load it without quantization`);
  }
}

/** Refuses a forward of the full model, of which a rank has some stages. */
function requireSection(inputs: unknown): void {
  if (typeof inputs === "object" && inputs !== null && Reflect.get(inputs, "section") !== undefined) return;
  throw new ArgumentError(
    "Cannot run a forward of the full model: this rank has some stages of it. Give rows to run.backward, trainStep or evaluate, which " +
      "send them through all stages",
  );
}

function resolve(options: PipelineOptions, group: ProcessGroup): { schedule: PipelineSchedule; stagesPerRank: number } {
  requireKnownKeys("divide a model into stages", options, KNOWN_OPTIONS);
  const { schedule = "1f1b" } = options;
  const { stagesPerRank = schedule === "interleaved" ? 2 : 1 } = options;
  if (!PIPELINE_SCHEDULES.includes(schedule)) {
    throw new ArgumentError(`Cannot run stages by '${schedule}': schedules are ${PIPELINE_SCHEDULES.join(", ")}`);
  }
  const isCount = Number.isInteger(stagesPerRank) && stagesPerRank >= 1;
  if (!isCount || (schedule === "1f1b") !== (stagesPerRank === 1)) {
    const expected = schedule === "1f1b" ? "1 by the schedule 1f1b" : "at least 2 by the schedule interleaved";
    throw new ArgumentError(
      `Cannot give ${countOf(group.size, "rank")} ${stagesPerRank} stages each: it must be ${expected}`,
    );
  }
  return { schedule, stagesPerRank };
}

/**
 * Gives each rank of an axis some stages of a model: consecutive blocks, with what is before them on the first rank, and what is behind
 * them on the last. `run.backward`, the trainer and `evaluate` send micro-batches through the stages from then on. Every rank of the axis
 * must read the same rows. Collective over the axis. Divide after `parallelizeModule` and `parallelizeExperts`, then shard over axes that
 * carry data, and initialize or load last: values and checkpoints are the full model's.
 *
 * @param axis one axis of a mesh, e.g. `run.mesh.get("pipeline")`
 * @param options the schedule, and the division into stages
 * @returns the stages; its `layers` are the blocks to shard on this rank
 * @throws {ArgumentError} if there are fewer blocks than stages, the model has values, or options contradict each other
 * @throws {UnsupportedError} for adapters and quantized weights
 * @example
 * ```ts ignore
 * const run = await launch({ axes: { pipeline: 2, shard: 2 } });
 * const model = await openModel(run, "path/to/llama");
 * const { layers } = parallelizePipeline(model, run.mesh.get("pipeline"));
 * for (const block of layers) fullyShard(block, { mesh: run.mesh.get("shard") });
 * fullyShard(model, { mesh: run.mesh.get("shard") });
 * await model.load();
 * ```
 */
export function parallelizePipeline(model: CausalLm, axis: DeviceMesh, options: PipelineOptions = {}): Pipeline {
  const name = requireOneAxis(axis, "divide into stages");
  const { group } = axis;
  model.ensureNames();
  const pipeline = group.agree(`divide ${model.constructor.name} into stages`, () => {
    const { split = "layers", dtype = float32 } = options;
    const { schedule, stagesPerRank } = resolve(options, group);
    if (group.size > 1) requireDivisible(model, group);
    for (const parameter of model.parameters()) {
      parameter.requirePlain("divide");
      if (parameter.storage.hasValues()) {
        throw new ArgumentError(
          `Cannot divide '${parameter.fqn}' among stages: it has values; divide the model before it is loaded`,
        );
      }
    }
    const stages = divideLayers(model, group.size * stagesPerRank, split);
    return new Pipeline(model, group, { schedule, stagesPerRank, stages, dtype });
  });
  if (group.size === 1) return pipeline;
  const over = placementAxis(group, name);
  const none = emptyShard(model.device);
  for (const parameter of model.parameters()) {
    const places = [...new Set(pipeline.stagesOf(parameter).map((stage) => pipeline.rankOf(stage)))];
    parameter.leaveTo({ axis: over, places: places.sort((a, b) => a - b), emptyShard: none });
  }
  model.registerForwardPreHook(([inputs]) => requireSection(inputs));
  model.pipeline = pipeline;
  return pipeline;
}

/** The parameters that this rank keeps and other stages keep too, in the order of the model. */
export function sharedParameters(model: CausalLm): readonly Parameter[] {
  return [...model.parameters()].filter(({ owners }) => (owners?.places.length ?? 1) > 1 && isKeptHere(owners));
}

/** The stage of a pipeline. */
export function stageAt({ stages }: Pipeline, stage: number): PipelineStage {
  return at(stages, stage, "stage");
}
