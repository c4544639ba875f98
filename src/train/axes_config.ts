/**
 * The keys that lay a run's ranks over several axes, as in transformers' `DistributedConfig`, the axes that they make, and how often
 * copies over them are compared.
 *
 * @module
 */
import * as z from "zod";
import { CONTEXT_COMM_STRATEGIES, type ContextCommStrategy } from "../axes/context.ts";
import type { ParallelizePlan } from "../axes/parallelize.ts";
import { PIPELINE_SCHEDULES, type PipelineSchedule } from "../axes/pipeline_schedule.ts";
import { PIPELINE_SPLITS, type PipelineSplit } from "../axes/pipeline_split.ts";
import { STYLE_NAMES, type StyleName } from "../axes/styles.ts";
import type { MeshShape } from "../comm/mesh.ts";
import { needs } from "../config/needs.ts";
import { type Section, section } from "../config/section.ts";
import { ConfigError, type ConfigProblem } from "../errors.ts";
import { countOf } from "../words.ts";
import { count, size } from "./config_values.ts";

/**
 * Ranks by axis.
 *
 * @internal
 */
export interface AxesConfig {
  readonly tpSize?: number | undefined;
  readonly tpPlan?: "auto" | ParallelizePlan | undefined;
  readonly enableSequenceParallel: boolean;
  readonly fsdpSize?: number | undefined;
  readonly dpReplicateSize?: number | undefined;
  readonly cpSize: number;
  readonly cpCommStrategy: ContextCommStrategy;
  readonly epSize: number;
  readonly ppSize: number;
  readonly ppSchedule: PipelineSchedule;
  readonly ppStagesPerRank?: number | undefined;
  readonly ppSplit: Exclude<PipelineSplit, readonly number[]> | "flops";
  readonly ppLayers: readonly number[];
  readonly checkReplicas: number;
}

const style: z.ZodType<StyleName> = z.enum(STYLE_NAMES);

/** Keys of axes. */
export const axesSection: Section<AxesConfig> = section(
  "axes",
  z.strictObject({
    tpSize: size.optional().describe(
      "Tensor parallelism: ranks that read the same rows, each with a part of the weights (default: 1)",
    ).meta({ otherNames: ["tensor-parallel-size", "tensor-parallel-degree", "tp"] }),
    tpPlan: z.union([z.literal("auto"), z.record(z.string(), style)]).optional().describe(
      "Tensor-parallel style of each layer: auto: the family's plan; or JSON of names to styles, which override it " +
        "(default: auto)",
    ),
    enableSequenceParallel: z.boolean().default(false).describe(
      "With tpSize: between cut layers, each rank has a part of the positions of every row: norms and residuals " +
        "take less memory",
    ).meta({ otherNames: ["sequence-parallel"] }),
    fsdpSize: size.optional().describe("Ranks that share a copy of the model (default: what the other sizes leave)")
      .meta({
        otherNames: ["dp-shard-size", "data-parallel-shard-degree"],
      }),
    dpReplicateSize: size.optional().describe("Copies of the sharded model (default: 1)").meta({
      otherNames: ["data-parallel-replicate-degree"],
    }),
    cpSize: size.default(1).describe("Context parallelism: ranks that share the positions of each row").meta({
      otherNames: ["context-parallel-size", "context-parallel-degree", "cp"],
    }),
    cpCommStrategy: z.enum(CONTEXT_COMM_STRATEGIES).default("allgather").describe(
      "With cpSize: allgather: attention gathers keys and values of all ranks; ring: they go from rank to rank; ulysses: ranks " +
        "exchange positions for heads",
    ).meta({ otherNames: ["cp-rotate-method", "context-parallel-rotate-method"] }),
    epSize: size.default(1).describe(
      "Expert parallelism: number of ranks, among those that share a copy, over which experts are divided, those of a " +
        "tensor axis first; tokens travel to them and back",
    ).meta({ otherNames: ["expert-parallel-size", "expert-parallel-degree", "ep"] }),
    ppSize: size.default(1).describe(
      "Pipeline parallelism: ranks that hold consecutive blocks of the model, through which micro-batches pass",
    ).meta({ otherNames: ["pipeline-parallel-size", "pipeline-parallel-degree", "pp"] }),
    ppSchedule: z.enum(PIPELINE_SCHEDULES).default("1f1b").describe(
      "With ppSize: 1f1b: one stage per rank; interleaved: several, with a smaller bubble and more messages",
    ).meta({ otherNames: ["pipeline-parallel-schedule"] }),
    ppStagesPerRank: size.optional().describe(
      "Stages of each rank by ppSchedule interleaved (default: 2; 1 by 1f1b)",
    ),
    ppSplit: z.enum([...PIPELINE_SPLITS, "flops"]).default("layers").describe(
      "Divide blocks into stages evenly by: layers; parameters; flops (the last two count embedding and head)",
    ),
    ppLayers: z.array(size).default([]).describe(
      "Blocks of each stage, in place of ppSplit: e.g. 7,9 (default: as ppSplit says)",
    ),
    checkReplicas: count.default(0).describe(
      "Every n steps, compare the bits of weights and optimizer states that several ranks hold; 0 compares none",
    ).meta({ otherNames: ["check-weight-hash-across-dp-replicas-interval"] }),
  }),
);

/** Further settings that decide about the axes. */
interface Beside {
  readonly strategy: "fsdp" | "ddp";
  readonly mesh: string;
}

/**
 * The axes that a configuration lays over the ranks, `pipeline`, `replicate`, `shard`, `expert`, `context` and `tensor`; undefined where it gives no
 * sizes, so that `mesh` says how the model is sharded. `shard` times `expert` ranks share a copy (`fsdpSize`). As in transformers,
 * `epSize` counts the ranks of the tensor axis, so `expert` is what they leave.
 *
 * @throws {ConfigError} for sizes whose product is not the number of ranks, and for those that nothing uses
 */
export function axesOf(config: AxesConfig & Beside, worldSize: number): MeshShape | undefined {
  const { tpSize, tpPlan, fsdpSize, dpReplicateSize: copies, cpSize, epSize, ppSize, strategy, mesh } = config;
  const problems: ConfigProblem[] = [...stageProblems(config)];
  const others = { ...ppSize > 1 ? { ppSize } : {}, ...cpSize > 1 ? { cpSize } : {} };
  const given = { dpReplicateSize: copies, fsdpSize, ...others, tpSize };
  const sizes = Object.entries(given).filter(([, size]) => size !== undefined);
  const text = sizes.map(([name, given]) => `${name} ${given}`).join(" × ");
  if (tpPlan !== undefined && (tpSize === 1 || (tpSize === undefined && fsdpSize === undefined))) {
    const got = tpSize === undefined ? "neither" : "tpSize 1";
    problems.push({
      path: "tpPlan",
      expected: "tpSize of at least 2, or fsdpSize, which leaves the other ranks to it",
      got,
    });
  }
  if (config.enableSequenceParallel && (tpSize ?? (tpPlan === undefined ? 1 : 2)) === 1) {
    problems.push(needs("enableSequenceParallel", "tpSize of at least 2", true));
  }
  if (config.cpCommStrategy !== "allgather" && cpSize === 1) {
    problems.push({ path: "cpCommStrategy", expected: "cpSize from 2 with it", got: "cpSize 1" });
  }
  if ((sizes.length > 0 || epSize > 1) && mesh !== "shard") {
    const what = [...sizes.length > 0 ? [text] : [], ...epSize > 1 ? [`epSize ${epSize}`] : []].join(" with ");
    problems.push({ path: "mesh", expected: `shard, as ${what} lays the ranks`, got: `'${mesh}'` });
  }
  if (strategy === "ddp" && (fsdpSize ?? 1) > 1) {
    problems.push({ path: "fsdpSize", expected: "1 with strategy ddp, which shards nothing", got: String(fsdpSize) });
  }
  const product = sizes.reduce((all, [, size]) => all * (size ?? NaN), 1);
  const rest = worldSize / product;
  const hasOpenTensor = tpPlan !== undefined && tpSize === undefined;
  const isOpen = hasOpenTensor || (strategy === "ddp" ? copies === undefined : fsdpSize === undefined);
  if (!Number.isInteger(rest) || (!isOpen && rest !== 1)) {
    const expected = `sizes whose product ${isOpen ? "divides" : "is"} ${countOf(worldSize, "rank")}`;
    problems.push({ path: sizes.at(-1)?.[0] ?? "fsdpSize", expected, got: `${text} = ${product}` });
  }
  const tensor = hasOpenTensor ? rest : tpSize ?? 1;
  const open = isOpen && !hasOpenTensor ? rest : 1;
  // Copies lie over one axis, whose name says that its ranks read other rows.
  const [replicate, shard] = strategy === "ddp" ? [1, (copies ?? 1) * open] : [copies ?? 1, (fsdpSize ?? 1) * open];
  const expert = epSize > 1 ? epSize / tensor : 1;
  if (epSize > 1 && Number.isInteger(rest)) problems.push(...expertProblems(config, { shard, tensor }));
  if (problems.length > 0) throw new ConfigError(problems);
  if (sizes.length === 0 && epSize === 1) return undefined;
  const inner = { ...expert > 1 ? { expert } : {}, ...cpSize > 1 ? { context: cpSize } : {} };
  const outer = { ...ppSize > 1 ? { pipeline: ppSize } : {}, ...replicate > 1 ? { replicate } : {} };
  return { ...outer, shard: shard / expert, ...inner, ...tensor > 1 ? { tensor } : {} };
}

/** Refuses settings of stages that contradict each other. */
function stageProblems(
  { ppSize, ppSchedule, ppStagesPerRank, ppSplit, ppLayers, enableSequenceParallel }: AxesConfig,
): readonly ConfigProblem[] {
  const given = { ppSchedule: ppSchedule !== "1f1b", ppStagesPerRank: (ppStagesPerRank ?? 1) > 1 };
  const problems: ConfigProblem[] = [];
  if (ppSize === 1) {
    for (
      const [path, isGiven] of Object.entries({
        ...given,
        ppSplit: ppSplit !== "layers",
        ppLayers: ppLayers.length > 0,
      })
    ) {
      if (isGiven) {
        problems.push({ path, expected: "ppSize of at least 2", got: `ppSize 1; set it, or remove ${path}` });
      }
    }
    return problems;
  }
  const stages = ppSize * (ppStagesPerRank ?? (given.ppSchedule ? 2 : 1));
  if (ppLayers.length > 0 && ppLayers.length !== stages) {
    const expected = `a number of blocks for each of ${stages} stages`;
    problems.push({ path: "ppLayers", expected, got: ppLayers.join(",") });
  }
  if (ppStagesPerRank !== undefined && given.ppSchedule !== given.ppStagesPerRank) {
    const expected = given.ppSchedule ? "at least 2 with ppSchedule interleaved" : "1 with ppSchedule 1f1b";
    problems.push({ path: "ppStagesPerRank", expected, got: String(ppStagesPerRank) });
  }
  if (enableSequenceParallel) {
    const expected = "false with ppSize above 1, as stages hand on all positions";
    problems.push({ path: "enableSequenceParallel", expected, got: "true" });
  }
  return problems;
}

/**
 * Refuses numbers of ranks over which experts cannot be divided.
 *
 * @param ranks `shard`: ranks that read other rows and share a copy; `tensor`: ranks that read the same rows
 */
function expertProblems(
  { epSize, strategy }: AxesConfig & Beside,
  { shard, tensor }: { readonly shard: number; readonly tensor: number },
): readonly ConfigProblem[] {
  const expected = epSize % tensor !== 0
    ? `a multiple of tpSize ${tensor}, over whose ranks experts are divided first`
    : strategy === "ddp" && epSize !== tensor
    ? `${tensor} with strategy ddp, which copies ${tensor === 1 ? "all" : "their"} experts`
    : shard * tensor % epSize !== 0
    ? `a number that divides the ${countOf(shard * tensor, "rank")} that share a copy`
    : undefined;
  return expected === undefined ? [] : [{ path: "epSize", expected, got: String(epSize) }];
}

/**
 * Ranks that read other rows than each other.
 *
 * @throws {ConfigError} as {@link axesOf}
 */
export function dataRanks(config: AxesConfig & Beside, worldSize: number): number {
  const axes = axesOf(config, worldSize);
  return worldSize / ((axes?.["tensor"] ?? 1) * (axes?.["context"] ?? 1) * (axes?.["pipeline"] ?? 1));
}
