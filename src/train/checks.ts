/**
 * Checks before a run that no single key's schema can make: ranks that agree, sizes that fit each other, an output folder that is
 * not another run's. All of them come before any rank has done work.
 *
 * @module
 */
import { microBatchProblem } from "../axes/pipeline_schedule.ts";
import { otherCheckpoint } from "../checkpoint/format/other_programs.ts";
import { listCheckpoints, stepOfPath } from "../checkpoint/sharded/directory.ts";
import { MANIFEST_FILE } from "../checkpoint/sharded/manifest.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { eosOf } from "../data/token_stream.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import type { Device } from "../device/device.ts";
import type { DeviceTraits } from "../device/traits.ts";
import { needs } from "../config/needs.ts";
import { ConfigError, type ConfigProblem, FileError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { type ActivationCheckpointingOptions, SAVEABLE_OPS } from "../nn/activation_checkpointing.ts";
import { METRICS_FILE } from "../report/run_files.ts";
import { entryKind } from "../runtime/entries.ts";
import { makeDirectory, pathExists, pathKind, requireWritableDirectory, resolveLinks } from "../runtime/files.ts";
import { coreCount, mostThreads } from "../runtime/processes.ts";
import { countOf } from "../words.ts";
import type { RunConfig, StepConfig } from "./config.ts";

/**
 * Refuses ranks that were started with different settings: they would train different models unnoticed.
 *
 * @throws {ConfigError} on every rank, naming each setting that differs and its values
 */
export function requireSameConfig(group: ProcessGroup, config: RunConfig): void {
  const own = JSON.stringify(Object.fromEntries(Object.entries(config).filter(([, value]) => value !== undefined)));
  const all = group.exchangeText(own, "settings").map((text): Record<string, unknown> => JSON.parse(text));
  const problems: ConfigProblem[] = [];
  for (const key of new Set(all.flatMap((settings) => Object.keys(settings)))) {
    const values = all.map((settings) => JSON.stringify(settings[key]) ?? "nothing");
    if (new Set(values).size === 1) continue;
    const got = values.map((value, rank) => `${value} on rank ${group.worldRanks[rank] ?? rank}`).join(", ");
    problems.push({ path: key, expected: "the same on all ranks", got });
  }
  if (problems.length > 0) throw new ConfigError(problems);
}

/**
 * Refuses more threads than this host's cores can keep busy: each takes memory, and time to start.
 *
 * @throws {ConfigError}
 */
export function requireThreads({ threads = 1 }: Pick<RunConfig, "threads">): void {
  const most = mostThreads();
  if (threads <= most) return;
  const expected = `at most ${most} on ${countOf(coreCount(), "core")}; leave --threads out to use this rank's share`;
  throw new ConfigError([{ path: "--threads", expected, got: String(threads) }]);
}

/**
 * Refuses a name for trackers where there are none.
 *
 * @throws {ConfigError}
 */
export function requireTracker({ runName, reportTo }: Pick<RunConfig, "runName" | "reportTo">): void {
  if (runName === undefined || reportTo.length > 0) return;
  throw new ConfigError([needs("runName", "reportTo", runName)]);
}

/**
 * Refuses a folder for tokenized text that cannot be written.
 *
 * @throws {FileError} naming `--cache`
 */
export function requireCache({ cache }: Pick<RunConfig, "cache">): void {
  try {
    // The folder stays, even if empty: another run may be about to write in it.
    makeDirectory(cache);
    requireWritableDirectory(cache);
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    const detail = `${error.detail}. It is for tokenized text: name another folder with '--cache'`;
    throw new FileError(error.path, error.action, detail, error.code);
  }
}

/**
 * Refuses a batch that cannot be divided among the ranks, and samples that are longer than the model's positions.
 *
 * @throws {ConfigError}
 */
export function requireSizes(config: StepConfig, model: CausalLm, worldSize: number): void {
  const { globalBatch, microBatches, sequenceLength } = config;
  requirePositions(sequenceLength, model);
  const problems: ConfigProblem[] = [];
  const parts = worldSize * microBatches;
  if (globalBatch % parts !== 0) {
    const expected = `a multiple of ${parts} (${countOf(worldSize, "rank")} × ${
      countOf(microBatches, "micro-batch", "micro-batches")
    })`;
    const nearest = Math.ceil(globalBatch / parts) * parts;
    problems.push({ path: "globalBatch", expected, got: `${globalBatch}: use ${nearest}, or other micro-batches` });
  }
  if (problems.length > 0) throw new ConfigError(problems);
}

/**
 * Refuses settings without those that they need: offloading, a mesh and a dtype of frozen weights need
 * sharding, states in a file need offloading.
 *
 * @throws {ConfigError}
 */
export function requireCompatible(config: StepConfig): void {
  const { strategy, cpuOffload, offloadStates, mesh, frozenDtype, cudaGraphs, cpSize, epSize, ppSize } = config;
  const { tpSize = 1, loadIn4bit, loadIn8bit, loraR, adapter } = config;
  const problems: ConfigProblem[] = [];
  const expected = "strategy fsdp";
  if (cpuOffload && strategy === "ddp") {
    const got = "'ddp', which cannot offload; use strategy fsdp, or remove cpuOffload";
    problems.push({ path: "cpuOffload", expected, got });
  }
  if (mesh !== "shard" && strategy === "ddp") {
    const got = `'ddp', which copies the model to every rank, and '${mesh}'; use strategy fsdp, or remove mesh`;
    problems.push({ path: "mesh", expected, got });
  }
  if (frozenDtype !== "file" && frozenDtype !== "float32" && strategy === "ddp") {
    const got = `'ddp', which keeps frozen weights in float32; use strategy fsdp, or remove frozenDtype`;
    problems.push({ path: "frozenDtype", expected, got });
  }
  for (const [name, size] of Object.entries({ cpSize, epSize, ppSize })) {
    if (cudaGraphs && size > 1) {
      problems.push({ path: "cudaGraphs", expected: `${name} 1`, got: `${name} ${size}; remove one of both` });
    }
  }
  if (tpSize > 1 && (loadIn4bit || loadIn8bit)) {
    const expected = `1 with ${loadIn4bit ? "loadIn4bit" : "loadIn8bit"}, as a cut would divide blocks of its codes`;
    problems.push({ path: "tpSize", expected, got: String(tpSize) });
  }
  if (ppSize > 1) {
    if (loraR !== undefined || adapter !== undefined) {
      const expected = `1 with ${loraR === undefined ? "adapter" : "loraR"}, as adapters are not trained in stages yet`;
      problems.push({ path: "ppSize", expected, got: String(ppSize) });
    }
    const { ppSchedule: schedule, microBatches } = config;
    const wanted = microBatchProblem(schedule, { ranks: ppSize, microBatches });
    const beside = `with ppSize ${ppSize} and ppSchedule '${schedule}'`;
    if (wanted !== undefined) {
      problems.push({ path: "microBatches", expected: `${wanted}, ${beside}`, got: String(microBatches) });
    }
  }
  if (offloadStates !== undefined && !cpuOffload) {
    problems.push(needs("offloadStates", "cpuOffload", offloadStates));
  }
  if (problems.length > 0) throw new ConfigError(problems);
}

/**
 * Refuses asynchronous saves if nothing is saved, or if each checkpoint holds a Hugging Face model, which all ranks write
 * together.
 *
 * @throws {ConfigError}
 */
export function requireSaves({ asyncSave, saveEvery, stateDictType }: RunConfig): void {
  if (!asyncSave) return;
  const problems: ConfigProblem[] = [];
  if (saveEvery === 0) {
    const got = "0, so no checkpoint would be written; set saveEvery, or remove asyncSave";
    problems.push({ path: "saveEvery", expected: "at least 1 with asyncSave", got });
  }
  if (stateDictType !== "sharded") {
    const got =
      `'${stateDictType}', which cannot be saved in the background; use 'sharded', and 'fullyshard merge' to get the model`;
    problems.push({ path: "stateDictType", expected: "sharded with asyncSave", got });
  }
  if (problems.length > 0) throw new ConfigError(problems);
}

/**
 * Refuses to capture steps
 * - on a device without graphs;
 * - with a trace, which sees nothing of a launched graph;
 * - if the host takes part in a step: for offloaded parameters, or between ranks that share a card.
 *
 * @throws {ConfigError}
 */
export function requireGraphs(
  { cudaGraphs, cpuOffload }: Pick<RunConfig, "cudaGraphs" | "cpuOffload">,
  { name, traits: { graphs, trace } }: Pick<Device, "name"> & {
    readonly traits: Pick<DeviceTraits, "graphs" | "trace">;
  },
  { size, kind, isEnqueued }: Pick<ProcessGroup, "size" | "kind" | "isEnqueued">,
): void {
  if (!cudaGraphs) return;
  const problems: ConfigProblem[] = [];
  if (graphs === undefined) {
    problems.push({ path: "cudaGraphs", expected: "device cuda", got: `'${name}', which has no graphs` });
  }
  if (trace !== undefined) {
    problems.push({ path: "trace", expected: "nothing with cudaGraphs", got: "a folder: a graph shows no kernels" });
  }
  if (cpuOffload) {
    const got = "true: offloaded parameters are updated by the host, which a CUDA graph cannot capture";
    problems.push({ path: "cpuOffload", expected: "false with cudaGraphs", got });
  }
  if (graphs !== undefined && size > 1 && !isEnqueued) {
    const got = `ranks joined by '${kind}', which goes through memory of the host`;
    problems.push({ path: "cudaGraphs", expected: "ranks joined by 'nccl', a card each", got });
  }
  if (problems.length > 0) throw new ConfigError(problems);
}

/**
 * Options of the checkpointing of blocks; undefined without it.
 *
 * @throws {ConfigError} if it is asked for by two keys, or if only its interval is given
 */
export function checkpointingOf(config: StepConfig): ActivationCheckpointingOptions | undefined {
  const { activationCheckpointing: mode, activationCheckpointingEvery: every, gradientCheckpointing } = config;
  const problems: ConfigProblem[] = [];
  if (mode !== "none" && gradientCheckpointing) {
    const expected = "activationCheckpointing or gradientCheckpointing, not both";
    problems.push({ path: "gradientCheckpointing", expected, got: `true, and activationCheckpointing '${mode}'` });
  }
  if (mode === "none" && !gradientCheckpointing && every !== 1) {
    problems.push(needs("activationCheckpointingEvery", "activationCheckpointing full or selective", every));
  }
  if (problems.length > 0) throw new ConfigError(problems);
  if (mode === "none" && !gradientCheckpointing) return undefined;
  return { every, saveOps: mode === "selective" ? SAVEABLE_OPS : [] };
}

/**
 * Refuses samples that are longer than the model's positions.
 *
 * @throws {ConfigError}
 */
export function requirePositions(sequenceLength: number, model: CausalLm): void {
  const { maxPositions } = model;
  if (sequenceLength <= maxPositions) return;
  const expected = `at most ${maxPositions}, the model's positions`;
  throw new ConfigError([{ path: "sequenceLength", expected, got: String(sequenceLength) }]);
}

/**
 * Refuses a run without text.
 *
 * @throws {ConfigError}
 */
export function requireData({ data }: Pick<RunConfig, "data">): void {
  if (data.length > 0) return;
  throw new ConfigError([{ path: "data", expected: "files to train on", got: "nothing: name files with '--data'" }]);
}

/**
 * Refuses a tokenizer with ids that the model does not have.
 *
 * @throws {ConfigError}
 */
export function requireVocabulary(tokenizer: Tokenizer, model: CausalLm): void {
  if (tokenizer.vocabSize <= model.vocabSize) return;
  const expected = `at most ${model.vocabSize} ids, as the model has`;
  const got = `${tokenizer.vocabSize} from '${tokenizer.path}'; use the model's own tokenizer, or set vocab_size`;
  throw new ConfigError([{ path: "tokenizer", expected, got }]);
}

/**
 * Refuses a prompt that leaves no position for the sample.
 *
 * @returns its ids, or the end of a text for an empty prompt
 * @throws {ConfigError}
 */
export function requirePrompt(prompt: string, tokenizer: Tokenizer, { maxPositions }: CausalLm): readonly number[] {
  if (!prompt.isWellFormed()) {
    throw new ConfigError([{ path: "prompt", expected: "valid Unicode text", got: "half of a surrogate pair" }]);
  }
  const ids = tokenizer.encode(prompt);
  if (ids.length < maxPositions) return ids.length > 0 ? ids : [eosOf(tokenizer)];
  const expected = `fewer tokens than the model's ${maxPositions} positions`;
  throw new ConfigError([{ path: "prompt", expected, got: `${ids.length}` }]);
}

/**
 * Refuses a folder with the output of another run, or with checkpoints that this run does not resume from.
 *
 * @throws {ConfigError}
 */
export function requireOwnFolder(config: RunConfig): void {
  const { out, resume, overwrite, setAside } = config;
  if (resumesInPlace(config)) {
    if (resume !== undefined && resume !== "auto") requireNewest(resume, out);
    return;
  }
  if (overwrite && setAside) {
    const got = "both: overwrite removes the old output, setAside keeps it";
    throw new ConfigError([{ path: "setAside", expected: "overwrite or setAside", got }]);
  }
  if (overwrite || setAside) requireOtherSources(config);
  if (setAside) return;
  const newest = listCheckpoints(out)[0];
  if (newest !== undefined) {
    const other = foreignCheckpointName(newest.path);
    if (other !== undefined) {
      const got = `'${out}' with '${newest.path}', ${other}. Give another folder with '--out'`;
      throw new ConfigError([{ path: "out", expected: "a folder without checkpoints", got }]);
    }
    const got =
      `'${out}' with '${newest.path}'. Resume from it with '--resume auto', give another folder with '--out', ` +
      "remove that checkpoint, or move the old output away with '--set-aside'";
    throw new ConfigError([{ path: "out", expected: "a folder without checkpoints", got }]);
  }
  const made = overwrite
    ? undefined
    : [METRICS_FILE, "model"].find((name) => entryKind(`${out}/${name}`) !== undefined);
  if (made === undefined) return;
  const got = `'${out}' with '${out}/${made}'. Give another folder with '--out', replace the old output with ` +
    "'--overwrite', or move it away with '--set-aside'";
  throw new ConfigError([{ path: "out", expected: "a folder without another run's output", got }]);
}

/** Description of another program's checkpoint; undefined for a checkpoint of this library, complete or not. */
function foreignCheckpointName(checkpoint: string): string | undefined {
  return pathExists(`${checkpoint}/${MANIFEST_FILE}`) ? undefined : otherCheckpoint(checkpoint)?.what;
}

/** True if a run resumes from a checkpoint in its output folder, so that the folder belongs to it. */
export function resumesInPlace({ out, resume }: Pick<RunConfig, "out" | "resume">): boolean {
  if (resume === "auto") return listCheckpoints(out).length > 0;
  return resume !== undefined && isWithin(resume, out);
}

/** Refuses to replace or move folders that the run reads until its end: its model's and its tokenizer's. */
function requireOtherSources({ out, model, tokenizer }: RunConfig): void {
  const problems: ConfigProblem[] = [];
  for (const [path, source] of Object.entries({ model, tokenizer })) {
    if (source === undefined || !pathExists(source) || !pathExists(out)) continue;
    if (!`${resolveLinks(source)}/`.startsWith(`${resolveLinks(out)}/`)) continue;
    const got = `'${source}', which the run would replace in '${out}'. Give another folder with '--out'`;
    problems.push({ path, expected: "a folder that is not another run's output in 'out'", got });
  }
  if (problems.length > 0) throw new ConfigError(problems);
}

/** Refuses newer checkpoints than the resumed one: they would outlive the coming ones, and be taken by the next resume. */
function requireNewest(resume: string, out: string): void {
  const own = stepOfPath(resume);
  if (own === undefined) return;
  const newer = listCheckpoints(out).filter(({ step }) => step > own).map(({ path }) => `'${path}'`).join(", ");
  if (newer === "") return;
  const remedy = "Move or remove them, or give another folder with '--out'";
  const got = `'${resume}', and there are newer ones: ${newer}. ${remedy}`;
  throw new ConfigError([{ path: "resume", expected: `the newest checkpoint in '${out}'`, got }]);
}

/** True if a checkpoint lies in a folder, in any spelling of both. */
function isWithin(checkpoint: string, folder: string): boolean {
  const parent = checkpoint.replace(/\/+$/, "").replace(/[^/]*$/, "") || ".";
  const areThere = pathKind(parent) === "directory" && pathKind(folder) === "directory";
  return areThere && resolveLinks(parent) === resolveLinks(folder);
}
