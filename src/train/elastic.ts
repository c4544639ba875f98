/**
 * A rank's part in a run whose ranks may change: the division of its batch among any number of ranks, and the place of the state that
 * it resumes from. Ranks are started by `launch/elastic.ts`.
 *
 * @module
 */
import { checkpointPath, listCheckpoints } from "../checkpoint/sharded/directory.ts";
import type { Ranks } from "../checkpoint/format/ranks.ts";
import { at } from "../at.ts";
import { ConfigError } from "../errors.ts";
import { COPIED_FILE, KEPT_FOLDER, REGROUP_MARK } from "../runtime/elastic_folder.ts";
import { type Environment, processEnvironment } from "../runtime/env.ts";
import { pathExists, pathKind, readTextSync } from "../runtime/files.ts";
import { readRankEnvironment } from "../runtime/rank_environment.ts";
import { countOf } from "../words.ts";
import { microBatchProblem } from "../axes/pipeline_schedule.ts";
import { dataRanks } from "./axes_config.ts";
import type { RunConfig } from "./config.ts";
import type { TrainerOptions } from "./trainer_options.ts";

/** A run whose ranks may change, as the launcher says. */
export interface ElasticRun {
  readonly fewestRanks: number;
  readonly mostRanks: number;
  /** Folder of the state in memory. */
  readonly kept: string;
  /** True if there may be several hosts, each with a folder of its own. */
  readonly hasHosts: boolean;
  /** The last step whose state the next host has too; -1 for none. */
  readonly copiedStep: () => number;
  /** Steps between two copies there; undefined: none. */
  readonly every: number | undefined;
  /** True if ranks that were started earlier have taken a step. */
  readonly goesOn: boolean;
  /** Why ranks were started again, in words; undefined at the first start. */
  readonly cause: string | undefined;
  /** True if the launcher asks ranks to leave at a step's border. */
  readonly isAskedToLeave: () => boolean;
}

/** Reads what the launcher says; undefined if the run's ranks do not change. */
export function readElasticRun(environment: Environment = processEnvironment()): ElasticRun | undefined {
  const folder = environment.text("FULLYSHARD_ELASTIC_FOLDER");
  const range = /^(\d+):(\d+)$/.exec(environment.text("FULLYSHARD_ELASTIC_RANKS") ?? "");
  if (folder === undefined || range === null) return undefined;
  return {
    fewestRanks: Number(range[1]),
    mostRanks: Number(range[2]),
    kept: `${folder}/${KEPT_FOLDER}`,
    hasHosts: environment.flag("FULLYSHARD_ELASTIC_HOSTS"),
    copiedStep: () => stepIn(`${folder}/${COPIED_FILE}`),
    every: environment.integer("FULLYSHARD_ELASTIC_EVERY"),
    goesOn: environment.flag("FULLYSHARD_ELASTIC_GOES_ON"),
    cause: environment.text("FULLYSHARD_ELASTIC_CAUSE"),
    isAskedToLeave: () => pathExists(`${folder}/${REGROUP_MARK}`),
  };
}

/** The step in a file that is replaced whole. */
function stepIn(file: string): number {
  return pathKind(file) === "file" ? Number(readTextSync(file)) : -1;
}

/** The division of a batch among a number of ranks. */
export interface BatchDivision {
  readonly worldSize: number;
  /** Micro-batches of each rank. */
  readonly microBatches: number;
}

/** Settings that decide how a batch can be divided. */
type Divided = Pick<RunConfig, "globalBatch" | "microBatches"> & Parameters<typeof dataRanks>[0];

/**
 * The world sizes with which a run can continue. The global batch stays, so fewer ranks take more micro-batches each; no micro-batch
 * is larger than at the full world size.
 *
 * @throws {ConfigError} if the full world size cannot divide the batch
 */
export function divisionsOf(
  config: Divided,
  { fewestRanks, mostRanks }: Pick<ElasticRun, "fewestRanks" | "mostRanks">,
): readonly BatchDivision[] {
  const { globalBatch, microBatches, ppSchedule, ppSize: ranks } = config;
  const readers = readersOf(config, mostRanks);
  const largest = globalBatch / readers / microBatches;
  const divisions: BatchDivision[] = [];
  for (let worldSize = fewestRanks; worldSize <= mostRanks; worldSize++) {
    const samples = globalBatch / readersIfAny(config, worldSize);
    if (worldSize === mostRanks) divisions.push({ worldSize, microBatches });
    else if (Number.isInteger(samples)) {
      let parts = Math.ceil(samples / largest);
      const fits = (): boolean =>
        samples % parts === 0 && microBatchProblem(ppSchedule, { ranks, microBatches: parts }) === undefined;
      while (parts < samples && !fits()) parts++;
      if (fits()) divisions.push({ worldSize, microBatches: parts });
    }
  }
  return divisions;
}

/**
 * The configuration of a run on this number of ranks. Ranks tell their launcher with which numbers the run can go on, and rank 0 says
 * so at the first start.
 *
 * @throws {ConfigError} as {@link divisionsOf}
 */
export function beginElastic(config: RunConfig, elastic: ElasticRun, { log, output }: TrainerOptions): RunConfig {
  const { rank, worldSize } = readRankEnvironment() ?? { rank: 0, worldSize: 1 };
  const divisions = divisionsOf(config, elastic);
  // Each host's launcher hears it from its own ranks, as any host may be lost.
  output.elastic?.({ worldSizes: divisions.map((division) => division.worldSize), out: config.out });
  if (rank === 0 && !elastic.goesOn) log.info(describeDivisions(divisions, config, elastic));
  // Where none fits, the check of sizes says why, as for a run whose ranks stay.
  const own = divisions.find((division) => division.worldSize === worldSize);
  return own === undefined ? config : { ...config, microBatches: own.microBatches };
}

/** The world sizes with which a run can continue, in words. */
function describeDivisions(
  divisions: readonly BatchDivision[],
  { globalBatch }: Pick<RunConfig, "globalBatch">,
  { every }: ElasticRun,
): string {
  const each = divisions.toReversed().map(({ worldSize, microBatches }) =>
    `${worldSize} (${countOf(microBatches, "micro-batch", "micro-batches")} per rank)`
  );
  const from = every === undefined
    ? "from the last checkpoint"
    : `from memory, where its state is kept after ${every === 1 ? "each step" : `every ${every} steps`}`;
  return `If ranks are lost, the run continues ${from}. World sizes that divide the global batch of ${globalBatch}: ${
    each.join(", ")
  }`;
}

/** A checkpoint directory to go on from. */
export interface ResumePlace {
  readonly directory: string;
  /** `auto`, or the path of a checkpoint. */
  readonly from: string;
  readonly isMemory: boolean;
}

/**
 * The places to go on from, the best first: memory or the output folder, which has the newer state, then the checkpoint that the run
 * was to begin from. Every rank must call it.
 */
export async function resumePlaces(
  { out, resume }: Pick<RunConfig, "out" | "resume">,
  elastic: ElasticRun | undefined,
  ranks: Ranks,
): Promise<readonly ResumePlace[]> {
  const asked = resume === undefined ? [] : [{ directory: out, from: resume, isMemory: false }];
  if (elastic?.goesOn !== true) return asked;
  const newest = (directory: string): number => listCheckpoints(directory)[0]?.step ?? -1;
  const own = await ranks.together("look for kept state", () => {
    return ranks.rank === 0 ? [newest(elastic.kept), newest(out)] : [];
  });
  const [kept = -1, saved = -1]: readonly number[] = JSON.parse(
    at(ranks.exchangeText(JSON.stringify(own), "look for kept state"), 0, "steps of rank"),
  );
  // Each host has a folder of its own, so ranks take rank 0's step, and not its path.
  const memory = { directory: elastic.kept, from: checkpointPath(elastic.kept, kept), isMemory: true };
  const disk = { directory: out, from: "auto", isMemory: false };
  const places = kept >= saved ? [[kept, memory], [saved, disk]] as const : [[saved, disk], [kept, memory]] as const;
  return [
    ...places.flatMap(([step, place]) => step < 0 ? [] : [place]),
    ...asked.filter(({ from }) => from !== "auto"),
  ];
}

/** Ranks that read different samples. @throws {ConfigError} if the axes have another number of ranks */
function readersOf(config: Divided, worldSize: number): number {
  const copies = /^(\d+)x(\d+)$/.exec(config.mesh);
  if (copies !== null && Number(copies[1]) * Number(copies[2]) !== worldSize) {
    throw new ConfigError([{ path: "mesh", expected: `${worldSize} ranks`, got: config.mesh }]);
  }
  return dataRanks(config, worldSize);
}

/** The same, or NaN. */
function readersIfAny(config: Divided, worldSize: number): number {
  try {
    return readersOf(config, worldSize);
  } catch (error) {
    if (error instanceof ConfigError) return NaN;
    throw error;
  }
}
