/**
 * `fullyshard estimate`: what a training step of a model takes on one rank of any number of them: memory, communication and
 * calculation, from a dry run of the step itself. Needs no weights, and none of the memory.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { at } from "../at.ts";
import { slotsOf } from "../axes/pipeline_schedule.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section, type SectionValue } from "../config/section.ts";
import type { MemoryTerms } from "../device/allocator.ts";
import { OWN_ATTENTION } from "../device/attention.ts";
import { DEVICES } from "../device/registry.ts";
import { ConfigError } from "../errors.ts";
import { processEnvironment } from "../runtime/env.ts";
import { terminal } from "../runtime/terminal.ts";
import { adapterSection } from "../train/adapter_config.ts";
import { axesSection, dataRanks } from "../train/axes_config.ts";
import { dataSection, type ParallelConfig, parallelSection, type StepConfig, trainSection } from "../train/config.ts";
import { huggingFaceSection } from "../train/hugging_face_config.ts";
import { optimizerSection } from "../train/optimizer_config.ts";
import { outputSection } from "../train/output_config.ts";
import { preferenceSection } from "../train/preference_config.ts";
import type { CollectiveUse } from "../train/dry_run.ts";
import { foreignPresets } from "../train/presets.ts";
import { estimateStep, type StepEstimate } from "../train/estimate.ts";
import { predictStages, predictTime, type Speeds, type StepTime } from "../train/timeline.ts";
import { countOf, formatBytes } from "../words.ts";
import { path } from "../train/config_values.ts";

const size = z.int().positive();
/** The defaults of a training. */
const usual = {
  ...dataSection.schema.parse({}),
  ...trainSection.schema.parse({}),
  ...optimizerSection.schema.parse({}),
};

/** The keys that only an estimate has. */
const estimateSection = section(
  "estimate",
  z.strictObject({
    model: path.describe("Hugging Face folder, name in its cache, or a config.json; weights are not read"),
    nproc: size.describe("Ranks"),
    rank: z.int().nonnegative().optional().describe(
      "Rank that is estimated (default: 0; with ppSize a rank of the stage that needs most memory)",
    ),
    batch: size.default(1).describe("Samples of a micro-batch on each rank").meta({ otherNames: ["batch-size"] }),
    seq: size.default(usual.sequenceLength).describe("Tokens of a sample").meta({
      otherNames: ["seq-len", "sequence-length"],
    }),
    packing: dataSection.schema.shape.packing,
    microBatches: size.default(usual.microBatches).describe("Micro-batches of a step on each rank"),
    device: z.enum(DEVICES).optional().describe(
      "Device to estimate for (cuda needs no GPU here; default: cpu, or cuda with cudaGraphs or attention cudnn)",
    ),
    registersMemory: z.boolean().default(true).describe(
      "With cuda: gather into memory registered with NCCL, as NCCL from 2.27 on does unless NCCL_WIN_ENABLE is 0",
    ),
    ranksPerHost: size.optional().describe("Ranks per host, for mesh hybrid (default: LOCAL_WORLD_SIZE, else all)"),
    tflops: z.number().positive().optional().describe("Compute speed of a rank in TFLOP/s, to estimate a step's time"),
    bandwidth: z.number().positive().optional().describe(
      "GB/s that a rank receives from other hosts, to estimate a step's time",
    ),
    hostBandwidth: z.number().positive().optional().describe(
      "GB/s that a rank receives from ranks of its host (default: bandwidth)",
    ),
    optimizer: optimizerSection.schema.shape.optimizer,
    emaDecay: optimizerSection.schema.shape.emaDecay,
    neftuneNoiseAlpha: trainSection.schema.shape.neftuneNoiseAlpha,
    asyncSave: outputSection.schema.shape.asyncSave,
    json: z.boolean().default(false).describe("Print one JSON object"),
  }),
);

type EstimateConfig = SectionValue<typeof estimateSection>;

const SECTIONS = [
  estimateSection,
  adapterSection,
  preferenceSection,
  parallelSection,
  axesSection,
  huggingFaceSection,
] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Estimates a step and prints what it takes.
 *
 * @param argv the arguments after `estimate`
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong, and sizes that do not fit the model
 * @throws {FileError} {@link CheckpointError} if there is no model configuration
 * @throws {UnsupportedError} for a model that there is not
 */
export async function estimate(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    const out = terminal("stdout");
    const usage = "fullyshard estimate --model <folder> --nproc <n> [flags]";
    out.write(`${await configHelp(SECTIONS, usage, out.columns())}\n`);
    return 0;
  }
  const config = await resolveConfig(SECTIONS, { argv, presets: foreignPresets({}, []) });
  const { model, nproc: worldSize, rank: asked, batch, seq: sequenceLength, microBatches, cpuMath, registersMemory } =
    config;
  if (asked !== undefined && asked >= worldSize) {
    throw new ConfigError([{ path: "--rank", expected: `a rank below ${worldSize}`, got: String(asked) }]);
  }
  const speeds = speedsOf(config);
  const globalBatch = batch * microBatches * dataRanks(config, worldSize);
  const run = { ...usual, ...config, sequenceLength, globalBatch };
  const localWorldSize = config.ranksPerHost ?? processEnvironment().integer("LOCAL_WORLD_SIZE");
  const place = isOnCard(config) ? { device: "cuda", registersMemory } as const : { cpuMath };
  const perStage = worldSize / config.ppSize;
  const stepOf = (rank: number): Promise<StepEstimate> =>
    estimateStep(run, model, { worldSize, rank, localWorldSize, ...place });
  // One rank of each stage, as ranks of a stage need the same: the rank that was asked for, or the first one.
  const ranks = Array.from({ length: config.ppSize }, (_, stage) => {
    return asked !== undefined && Math.floor(asked / perStage) === stage ? asked : stage * perStage;
  });
  const stages: StepEstimate[] = [];
  for (const rank of ranks) stages.push(await stepOf(rank));
  const most = Math.max(...stages.map(({ peakBytes }) => peakBytes));
  const told = asked === undefined ? stages.findIndex(({ peakBytes }) => peakBytes === most) : ranks.indexOf(asked);
  const [rank, step] = [at(ranks, told, "rank of stage"), at(stages, told, "stage")];
  const time = speeds === undefined ? undefined : timeOf(step, stages, speeds, run);
  const text = config.json
    ? [JSON.stringify({ ...config.ppSize === 1 ? {} : { rank }, ...jsonOf(step, time, run) })]
    : [...textOf(step, { ...run, rank }), ...timeLines(time, run)];
  process.stdout.write(`${text.join("\n")}\n`);
  return 0;
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

/** Tokens of a step on each rank. */
function tokensOf({ batch, microBatches, seq }: EstimateConfig): number {
  return batch * microBatches * seq;
}

function timeLines(time: StepTime | undefined, config: EstimateConfig): readonly string[] {
  if (time === undefined) return [];
  const row = (name: string, value: string): string => `  ${name.padEnd(16)}${"".padStart(5)}${value.padStart(12)}`;
  const seconds = (value: number): string => `${value.toPrecision(4)} s`;
  return [
    `Time of a step at ${config.tflops} TFLOP/s and ${config.bandwidth} GB/s`,
    row("compute", seconds(time.compute)),
    row("communication", seconds(time.communication)),
    row("exposed", seconds(time.exposed)),
    row("in all", seconds(time.step)),
    row("tokens a second", `${Math.round(tokensOf(config) / time.step)}`),
  ];
}

/** The object of `--json`, with names as in `metrics.jsonl`. */
function jsonOf(
  { peakBytes, terms, offloaded, stateFileBytes, bytesCommunicated, collectives, flops }: StepEstimate,
  time: StepTime | undefined,
  config: EstimateConfig,
): object {
  return {
    peak_bytes: peakBytes,
    terms: jsonTerms(terms),
    offloaded: { peak_bytes: offloaded.peakBytes, terms: jsonTerms(offloaded.terms) },
    state_file_bytes: stateFileBytes,
    bytes_communicated: bytesCommunicated,
    collectives: collectives.map(({ kind, unit, phase = null, bytes, hosts }) => ({ kind, unit, bytes, hosts, phase })),
    flops,
    ...time === undefined ? {} : {
      step_seconds: time.step,
      compute_seconds: time.compute,
      communication_seconds: time.communication,
      exposed_seconds: time.exposed,
      tokens_per_second_per_rank: tokensOf(config) / time.step,
    },
  };
}

function jsonTerms(terms: MemoryTerms): object {
  return Object.fromEntries(Object.entries(terms).map(([name, bytes]) => [name.replaceAll(" ", "_"), bytes]));
}

/** Lines for people. */
function textOf(
  { numParameters, ...step }: StepEstimate,
  config: StepConfig & EstimateConfig & { readonly rank: number },
): string[] {
  const { strategy, nproc, rank, precision, batch, seq, microBatches } = config;
  const row = (name: string, text: string, count: string = ""): string =>
    `  ${name.padEnd(16)}${count.padStart(5)}${text.padStart(12)}`;
  const kinds = Map.groupBy(step.collectives, ({ kind }) => kind);
  const total = (calls: readonly CollectiveUse[]): number => calls.reduce((sum, { bytes }) => sum + bytes, 0);
  return [
    `${countOf(numParameters, "parameter")}, ${strategy.toUpperCase()} over ${countOf(nproc, "rank")}, ${precision}, ` +
    `a step of ${microBatches} × ${countOf(batch, "sample")} of ${countOf(seq, "token")} a rank`,
    `Memory of rank ${rank} at its peak`,
    ...Object.entries(step.terms).map(([name, bytes]) => row(name, formatBytes(bytes))),
    row("in all", formatBytes(step.peakBytes)),
    ...config.cpuOffload
      ? [
        "Host memory at its peak",
        ...Object.entries(step.offloaded.terms).filter(([, bytes]) => bytes > 0).map(([name, bytes]) =>
          row(name, formatBytes(bytes))
        ),
        row("in all", formatBytes(step.offloaded.peakBytes)),
        ...step.stateFileBytes > 0 ? [row("states in a file", formatBytes(step.stateFileBytes))] : [],
      ]
      : [],
    "Collectives of a step",
    ...Array.from(kinds, ([kind, calls]) => row(kind, formatBytes(total(calls)), `${calls.length} ×`)),
    row("received", formatBytes(step.bytesCommunicated)),
    `Compute   ${(step.flops / 1e12).toPrecision(4)} TFLOP`,
  ];
}
