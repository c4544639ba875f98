/**
 * Loading a sharded checkpoint onto any number of ranks: each reads the elements that it holds from whichever files have
 * them, or rank 0 reads all and sends them. Finding checkpoints is left to `find.ts`.
 *
 * @module
 */
import { requireKnownKeys } from "../../config/known_keys.ts";
import { OWN_ATTENTION } from "../../device/attention.ts";
import { float32 } from "../../dtype.ts";
import { ArgumentError, CheckpointError } from "../../errors.ts";
import type { JsonObject } from "../../json.ts";
import { AVERAGE } from "../../optim/averages.ts";
import type { Ranks } from "../format/ranks.ts";
import { configFor } from "../hugging_face/save.ts";
import { scatterFull } from "../state_dict/full_tensor.ts";
import { compareGroups, groupsOf } from "../state_dict/group_settings.ts";
import {
  type HeldTensor,
  type LoadReport,
  modelTensors,
  openModelForWriting,
  optimizerTensors,
  requireFit,
} from "../state_dict/state_dict.ts";
import { averagedManifest } from "./averaged_manifest.ts";
import { findCheckpoint, verdictOf } from "./find.ts";
import { CONFIG_FILE, type Manifest, type SavedTensor } from "./manifest.ts";
import { requireOptionsOf } from "./required_options.ts";
import { environmentOf, type SaveCheckpointOptions } from "./save_plan.ts";
import { type SavedPart, savedParts, ShardReader } from "./shard_reader.ts";

/** Options of {@link loadCheckpoint}; as for {@link saveCheckpoint}, but the group may be of another size. */
export interface LoadCheckpointOptions
  extends Pick<SaveCheckpointOptions, "directory" | "model" | "optimizer" | "group" | "environment"> {
  /** `auto` (default), the newest complete checkpoint, or the path of a checkpoint. */
  readonly from?: string;
  /** Refuses tensors that are missing or unexpected; else they are reported. @default true */
  readonly strict?: boolean;
  /** Rank 0 alone reads files, and sends the others what they hold, piece by piece. @default false */
  readonly broadcastFromRank0?: boolean;
  /** Takes the averages of the weights (`emaDecay`) in place of these; not with an optimizer. @default false */
  readonly averages?: boolean | undefined;
}

/** A checkpoint that was loaded. */
export interface LoadedCheckpoint extends LoadReport {
  /** The checkpoint's directory. */
  readonly path: string;
  /** Steps taken. */
  readonly step: number;
  /** The trainer's own. */
  readonly state: JsonObject;
  /** Newer checkpoints that were not complete, each with its problem. */
  readonly skipped: readonly string[];
  /** Differences from the training that saved, e.g. `cpuMath was native, is wasm`: results need not agree to the bit. */
  readonly differences: readonly string[];
  /** Keys of `config.json` and settings of the optimizer's groups that are not as they were saved; the present ones are kept. */
  readonly changes: readonly string[];
  /** Bytes of tensors that this rank read. */
  readonly bytesRead: number;
  /** Bytes that it read of files: with headers, and with the rest of each piece of 1 MiB that has a checksum. */
  readonly fileBytesRead: number;
}

/**
 * Loads a checkpoint into a model and its optimizer. Every rank must call it. What a rank reads it checks as it reads; a
 * damaged checkpoint leaves the model with some of its values, as the error says.
 *
 * @returns the state from which training goes on; `undefined` if `auto` is asked for and there is no checkpoint
 * @throws {CheckpointError} if the checkpoint is not complete (naming the last complete one), or does not fit (listing all names)
 * @throws {FileError} if a file cannot be read; the other ranks get a {@link CollectiveError}
 * @example
 * ```ts ignore
 * const loaded = await loadCheckpoint({ directory: "out/checkpoints", model, optimizer, group });
 * ```
 */
export async function loadCheckpoint(options: LoadCheckpointOptions): Promise<LoadedCheckpoint | undefined> {
  const known = { directory: true, model: true, optimizer: true, group: true, environment: true } as const;
  const more = { from: true, strict: true, broadcastFromRank0: true, averages: true } as const;
  requireKnownKeys("load a checkpoint", options, { ...known, ...more });
  requireOptionsOf("load a checkpoint", options);
  const { directory, from = "auto", model, optimizer, group, averages = false } = options;
  if (averages && optimizer !== undefined) {
    throw new ArgumentError(
      "Cannot load averages in place of weights with the states of an optimizer: they were made for the weights; leave one out",
    );
  }
  let report: LoadReport = { missing: [], unexpected: [] };
  let read = { bytesRead: 0, fileBytesRead: 0 };
  let isMixed = false;
  const found = await findCheckpoint(directory, from, group, async (path, saved) => {
    const name = path.replace(/\/+$/, "").replace(/^.*\//s, ""); // hosts may have the checkpoint at paths of their own
    const manifest = averages
      ? await group.together(`find averages in '${name}'`, () => averagedManifest(path, saved))
      : saved;
    report = await group.together(`load '${name}'`, () => checkFit(path, manifest, options));
    using reader = new ShardReader(path, manifest);
    const damage = await readAll(path, manifest, reader, options, report.missing);
    read = { bytesRead: reader.bytesRead, fileBytesRead: reader.fileBytesRead };
    isMixed = damage !== "";
    return damage;
  }).catch((error: unknown) => {
    if (!isMixed || !(error instanceof CheckpointError)) throw error;
    const detail = `${error.detail}. The model holds some of its values by now: load a whole one, or initialize it`;
    throw new CheckpointError(error.file, detail, error.tensor, { cause: error });
  });
  if (found === undefined) return undefined;
  const { path, manifest, config, skipped } = found;
  const saved = manifest.optimizer;
  if (optimizer !== undefined && saved !== undefined) {
    for (const [name, parameter] of model.namedParameters()) {
      const steps = saved.steps.get(name);
      if (steps !== undefined) optimizer.setSteps(parameter, steps);
    }
    optimizer.stepsTaken = saved.stepsTaken;
  }
  return {
    path,
    step: manifest.step,
    state: manifest.state,
    skipped,
    differences: differencesOf(manifest, environmentOf(model, options.environment), group.size),
    changes: [
      ...config === undefined ? [] : compareConfigs(config, configFor(model, float32) ?? {}),
      ...optimizer === undefined || saved === undefined ? [] : compareGroups(saved.groups, groupsOf(model, optimizer)),
    ],
    ...report,
    ...read,
  };
}

/** Reads this rank's elements, or takes them from rank 0, which reads all. Gives the files' problem, or an empty text. */
async function readAll(
  path: string,
  manifest: Manifest,
  reader: ShardReader,
  { model, optimizer, group, broadcastFromRank0 = false }: LoadCheckpointOptions,
  missing: readonly string[],
): Promise<string> {
  const parts = savedParts(modelTensors(model), manifest.model);
  if (optimizer !== undefined && manifest.optimizer !== undefined) {
    parts.push(...savedParts(optimizerTensors(model, optimizer), manifest.optimizer.tensors));
  }
  using writing = openModelForWriting(model, missing);
  const damage = broadcastFromRank0
    ? await broadcastAll(path, parts, reader, group)
    : await verdictOf(path, group, async () => {
      for (const part of parts) await reader.read(part);
    });
  if (damage === "") writing.complete();
  return damage;
}

/** Rank 0 reads the stored parts in order; every rank takes the elements of each part that it holds. */
async function broadcastAll(
  path: string,
  parts: readonly SavedPart[],
  reader: ShardReader,
  group: Ranks,
): Promise<string> {
  const shares = parts.flatMap(({ held, saved }) =>
    saved.shares.map((share) => ({ held, box: share.box, share, stored: saved.stored ?? held.name }))
  );
  for (const { part: { stored, share }, start, values } of scatterFull(shares, { group })) {
    const damage = await verdictOf(path, group, async () => {
      if (group.rank === 0) await reader.readValues(share, stored, start, values);
    });
    if (damage !== "") return damage;
  }
  return "";
}

/** Compares names and shapes. */
function checkFit(path: string, manifest: Manifest, options: LoadCheckpointOptions): LoadReport {
  const { model, optimizer, strict = true } = options;
  const fit = (what: string, wanted: readonly HeldTensor[], saved: ReadonlyMap<string, SavedTensor>): LoadReport => {
    const found = [...saved].map(([name, { shape }]) => [name, { shape, code: float32.safetensors }] as const);
    const expected = new Map(wanted.map(({ name, shard }) => [name, shard.shape]));
    return requireFit(expected, new Map(found), { where: path, what, codes: [float32.safetensors], strict });
  };
  const report = fit("model", modelTensors(model), manifest.model);
  if (optimizer === undefined) return report;
  if (manifest.optimizer === undefined) {
    const detail = "Expected the states of the optimizer, got none: it was saved without an optimizer";
    throw new CheckpointError(path, detail);
  }
  for (const [name] of strict ? model.namedParameters() : []) {
    if (!manifest.optimizer.steps.has(name)) throw new CheckpointError(path, "There is no count of its steps", name);
  }
  const own = optimizerTensors(model, optimizer);
  if (strict) requireSameAverages(path, own, manifest.optimizer.tensors);
  const states = fit("optimizer", own, manifest.optimizer.tensors);
  return {
    missing: [...report.missing, ...states.missing],
    unexpected: [...report.unexpected, ...states.unexpected],
  };
}

/** Refuses averages of weights on one side alone, by one sentence in place of a line for each. */
function requireSameAverages(
  path: string,
  own: readonly HeldTensor[],
  saved: ReadonlyMap<string, SavedTensor>,
): void {
  const isAverage = (name: string): boolean => name.endsWith(`.${AVERAGE}`);
  const [isKept, isSaved] = [own.some(({ name }) => isAverage(name)), [...saved.keys()].some(isAverage)];
  if (isKept === isSaved) return;
  throw new CheckpointError(
    path,
    isSaved
      ? "It has averages of the weights, and this optimizer keeps none: set emaDecay ('--ema-decay')"
      : "It has no averages of the weights, which this optimizer keeps: go on without emaDecay ('--ema-decay')",
  );
}

/** Keys of a configuration that describe the contents and the writer of files. */
const OF_FILES = ["architectures", "dtype", "torch_dtype", "transformers_version"];

/** Compares two configurations; gives a line for each key that differs. */
function compareConfigs(saved: JsonObject, now: JsonObject): readonly string[] {
  const keys = [...new Set([...Object.keys(saved), ...Object.keys(now)])].filter((key) => !OF_FILES.includes(key));
  return keys.flatMap((key) => {
    const [was, is] = [saved[key], now[key]].map((value) => JSON.stringify(value) ?? "not set");
    return was === is ? [] : [`${key} of ${CONFIG_FILE} was ${was}, is ${is}`];
  });
}

/** Lists what computes differently from the save, a line for each key, with the remedy where a single setting is enough. */
function differencesOf(manifest: Manifest, now: Readonly<Record<string, string>>, worldSize: number): string[] {
  const usual = { attention: OWN_ATTENTION };
  const was: Readonly<Record<string, string>> = {
    ...usual,
    ...manifest.environment,
    worldSize: String(manifest.worldSize),
  };
  const is: Readonly<Record<string, string>> = { ...usual, ...now, worldSize: String(worldSize) };
  return [...new Set([...Object.keys(was), ...Object.keys(is)])].filter((key) => was[key] !== is[key]).map((key) => {
    const remedy = key === "attention" ? `; with attention '${was[key]}' it is computed as before` : "";
    return `${key} was ${was[key] ?? "not recorded"}, is ${is[key] ?? "not recorded"}${remedy}`;
  });
}
