/**
 * Models by folder or config: built from the headers alone, sharded by the caller, then loaded.
 *
 * @module
 */
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import { loadAdapterWeights, readAdapterFolder, withoutAdapter } from "../adapters/files.ts";
import { addLora, drawAdapter, loraOf } from "../adapters/lora.ts";
import { type QuantizationOptions, quantizeModel } from "../adapters/quantize.ts";
import { type HfWeights, openHfWeights } from "../checkpoint/format/hf_index.ts";
import { refuseAdapter } from "../checkpoint/format/adapters.ts";
import { companionsOf, describeLeftOut, type FolderCompanions } from "../checkpoint/format/companions.ts";
import { otherCheckpoint } from "../checkpoint/format/other_programs.ts";
import { findSnapshot, formatHubName, hubCache, parseHubName } from "../checkpoint/hugging_face/hub_cache.ts";
import { type LoadHfOptions, loadHfWeights, loadWeights } from "../checkpoint/hugging_face/load.ts";
import { summarizeNames } from "../checkpoint/hugging_face/names.ts";
import { requireStorable } from "../checkpoint/state_dict/transfer.ts";
import { requireSharded } from "../checkpoint/sharded/averaged_manifest.ts";
import { loadCheckpoint } from "../checkpoint/sharded/load.ts";
import { MANIFEST_FILE } from "../checkpoint/sharded/manifest.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { isDry } from "../device/dry/device.ts";
import type { DType } from "../dtype.ts";
import { eosIdsOf } from "../eos_ids.ts";
import { ArgumentError, FileError } from "../errors.ts";
import { parseJsonObject } from "../json.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { buildModel } from "../models/registry.ts";
import { initializeParameters } from "../nn/initialize.ts";
import { SHARD_OPTIONS, shardModel, type ShardModelOptions } from "../plans/shard_model.ts";
import { pathKind, readBytes } from "../runtime/files.ts";
import { Logger, standardErrorSink } from "../runtime/log.ts";
import { writeParameters } from "../tensor/write.ts";
import { unwind } from "../unwind.ts";
import { valueText } from "../words.ts";
import { setFileDtypes } from "./frozen_dtypes.ts";
import { requireRun } from "./required_run.ts";
import type { Run } from "./run.ts";
import { saveModel } from "./save_model.ts";

/**
 * Source of a model:
 * - a Hugging Face folder or a checkpoint, whose weights are loaded;
 * - the name of a model in Hugging Face's cache, such as `Qwen/Qwen3-0.6B`, or with a branch, tag or commit,
 *   `Qwen/Qwen3-0.6B@v1`; an existing folder or file of that name is preferred;
 * - a `config.json`, or its contents, for a model from scratch.
 */
export type ModelSource = string | Readonly<Record<string, unknown>>;

/** Options of {@link openModel}. Options of sharding count with `fsdpPlan` only. */
export interface OpenModelOptions extends Partial<ShardModelOptions>, LoadHfOptions {
  /** Seed of initial values, if no weights are read. @default 0 */
  readonly seed?: number;
  /** Folder of an adapter that PEFT, or `saveAdapter`, wrote for the model; it is applied, and trained further. @default none */
  readonly adapter?: string;
  /**
   * dtype that frozen parameters are kept in where they are sharded: `file`, each in the dtype of its file, or one dtype for all.
   * Trained parameters are float32. @default `file`
   */
  readonly frozenDtype?: "file" | DType;
  /** Takes the averages of a checkpoint's weights (`emaDecay`) in place of these. @default false */
  readonly averages?: boolean;
  /** Quantizes frozen linear layers: see `quantizeModel`. @default nothing is quantized */
  readonly quantization?: QuantizationOptions;
  /** Receives notices about the folder's files. @default standard error, a line each */
  readonly log?: Logger;
}

/** Names of the options of {@link openModel}. */
const KNOWN_OPTIONS: KnownKeys<OpenModelOptions> = {
  ...SHARD_OPTIONS,
  ...{
    broadcastFromRank0: true,
    seed: true,
    adapter: true,
    frozenDtype: true,
    quantization: true,
    log: true,
    averages: true,
  },
};

/**
 * Builds a model without memory. Call `fullyShard` or `replicate` on it, then `model.load()`, in which each rank reads or draws
 * its own shards. With `fsdpPlan` the model is sharded by that plan, over `mesh` or all ranks, and loaded: no rank ever holds the
 * full model.
 *
 * @throws {FileError} if there is no such folder, file or model in the cache
 * @throws {UnsupportedError} if the family or an option of it is not implemented
 * @throws {ConfigError} if the config does not fit the family, or the plan the model
 * @throws {ArgumentError} if an option is none of these, or options of sharding are given and no plan
 * @example
 * ```ts
 * import { fullyShard, launch, openModel } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * fullyShard(model, { mesh: run.mesh });
 * await model.load();
 * const planned = await openModel(run, { model_type: "llama", ...sizes }, { fsdpPlan: "auto", mesh: run.mesh });
 * if (planned.layers.length !== 2) throw new Error("sharded and loaded");
 * ```
 */
export async function openModel(
  run: Pick<Run, "device" | "group">,
  source: ModelSource,
  options: OpenModelOptions = {},
): Promise<CausalLm> {
  requireRun("open a model", run);
  requireKnownKeys("open a model", options, KNOWN_OPTIONS);
  if (typeof source !== "string" && (typeof source !== "object" || source === null)) {
    throw new ArgumentError(
      `Cannot open a model of ${valueText(source)}: expected the path of a folder, a model's name, or a config`,
    );
  }
  const { device, group } = run;
  const {
    seed = 0,
    broadcastFromRank0 = false,
    log = new Logger({ sink: standardErrorSink() }),
    adapter,
    frozenDtype = "file",
    quantization,
    averages = false,
    fsdpPlan,
    mesh,
    ...sharding
  } = options;
  const [inert] = fsdpPlan === undefined ? Object.keys({ ...mesh === undefined ? {} : { mesh }, ...sharding }) : [];
  if (inert !== undefined) {
    throw new ArgumentError(
      `Cannot use '${inert}' without a plan: give fsdpPlan as well, or call fullyShard on the model`,
    );
  }
  const place = typeof source === "string" ? placeOf(source) : undefined;
  const folder = place !== undefined && pathKind(place) === "directory" ? place : undefined;
  if (averages) requireSharded(folder ?? place ?? "a config");
  if (folder !== undefined) refuseAdapter(folder, adapter !== undefined);
  const hfConfig = typeof source === "string" ? await readHfConfig(place ?? source) : source;
  const model = buildModel(device, hfConfig);
  if (folder !== undefined) await setEosIds(model, folder);
  if (frozenDtype !== "file") setFrozenDtype(model, frozenDtype);
  else if (folder !== undefined && pathKind(`${folder}/${MANIFEST_FILE}`) === "none") {
    await setFileDtypes(model, folder, { device, group });
  }
  if (adapter !== undefined) await addAdapter(model, adapter, log);
  if (quantization !== undefined) quantizeModel(model, quantization);
  let listed: FolderCompanions | undefined;
  const companions = (from: string): FolderCompanions => listed ??= companionsOf(from);
  if (folder !== undefined) model.companions = { read: () => companions(folder).read() };
  model.files = {
    folder,
    load: async (given) => {
      const reading = { broadcastFromRank0, ...given };
      const base = withoutAdapter(model);
      const lora = loraOf(model);
      if (isDry(device)) return materialize(model);
      if (folder === undefined) initializeParameters(model, requireSameSeed(seed, group));
      else if (pathKind(`${folder}/${MANIFEST_FILE}`) === "file") {
        await loadCheckpoint({ directory: folder, from: folder, model: base, group, averages, ...reading });
      } else {
        const open = (): Promise<HfWeights> => openHfWeights(folder);
        const { ignored, files } = adapter === undefined
          ? await loadHfWeights(base, folder, group, reading)
          : await loadWeights(base, folder, group, reading, { what: "model", open }); // An adapter may lie beside.
        const note = log.withRank(group.rank).once();
        if (ignored.length > 0) note.info(`Left tensors of '${folder}' unread: ${summarizeNames(ignored)}`);
        const line = group.rank > 0
          ? undefined
          : describeLeftOut(folder, companions(folder), files, ", and out of what is saved");
        if (line !== undefined) note.info(line);
      }
      if (lora === undefined) return;
      if (adapter !== undefined) await loadAdapterWeights(lora, adapter, group, reading);
      else if (folder !== undefined) drawAdapter(lora, requireSameSeed(seed, group));
    },
    save: (directory, options) => saveModel(model, directory, group, options),
  };
  if (fsdpPlan !== undefined) {
    const handle = shardModel(model, { ...sharding, fsdpPlan, mesh: mesh ?? group });
    try {
      await model.load();
    } catch (error) {
      unwind([() => handle.dispose()]); // no other code has the handle
      throw error;
    }
  }
  return model;
}

/** Sets the dtype in which all frozen parameters are kept. */
function setFrozenDtype(model: CausalLm, dtype: DType): void {
  requireStorable(dtype);
  for (const parameter of model.parameters()) parameter.frozenDtype = dtype;
}

/** Adds the adapter of a folder, without values yet. */
async function addAdapter(model: CausalLm, folder: string, log: Logger): Promise<void> {
  const { options, otherKeys, baseModel, unknownKeys } = await readAdapterFolder(folder);
  const lora = addLora(model, options);
  lora.otherKeys = otherKeys;
  lora.baseModel = baseModel;
  if (unknownKeys.length === 0) return;
  log.info(`Kept keys of the adapter '${folder}' as they are, which are not known here: ${unknownKeys.join(", ")}`);
}

/** The path of a source: itself if it exists, else the snapshot of that model in Hugging Face's cache. */
export function placeOf(source: string): string {
  const named = pathKind(source) === "none" ? parseHubName(source) : undefined;
  if (named === undefined) return source;
  const cache = hubCache();
  const snapshot = findSnapshot(named, cache);
  if (snapshot !== undefined) return snapshot;
  const looked = `there is no such folder, nor revision '${named.revision}' of '${named.name}' in the cache '${cache}'`;
  throw new FileError(source, "open", `${looked}; get it by: fullyshard pull ${formatHubName(named)}`, "ENOENT");
}

/** Reads the ids that end generated text from a folder's `generation_config.json`, if it has some. */
async function setEosIds(model: CausalLm, folder: string): Promise<void> {
  const file = `${folder}/generation_config.json`;
  if (pathKind(file) === "none") return;
  const config = parseJsonObject(await readBytes(file), { file, what: "generation configuration", maxDepth: 32 });
  const ids = eosIdsOf(config, file);
  if (ids.length > 0) model.eosIds = ids;
}

/** Allocates a model's memory, without values. */
function materialize(model: CausalLm): void {
  writeParameters(model.parameters(), () => {});
  for (const [, buffer] of model.namedBuffers()) buffer.materialize();
}

/** Refuses ranks with different seeds, which would draw shards of different models. */
function requireSameSeed(seed: number, group: ProcessGroup): number {
  const seeds = group.exchangeText(String(seed), "seeds");
  if (new Set(seeds).size === 1) return seed;
  throw new ArgumentError(`Cannot draw a model from seeds ${seeds.join(", ")}, by rank: give every rank the same`);
}

/** Reads a `config.json`, or the one of a Hugging Face folder. */
export async function readHfConfig(path: string): Promise<Readonly<Record<string, unknown>>> {
  const kind = pathKind(path);
  const isWeights = kind === "file" && path.endsWith(".safetensors");
  const other = isWeights ? undefined : otherCheckpoint(path);
  const remedy = other === undefined
    ? "give the folder that it lies in"
    : `write a Hugging Face folder of it ${other.convert}`;
  const what = isWeights ? "a file of weights" : other?.what;
  const refuse = (): FileError => new FileError(path, "open", `it is ${what} and not a model's folder; ${remedy}`);
  if (kind === "file" && what !== undefined) throw refuse();
  const file = kind === "file" ? path : `${path}/config.json`;
  if (other !== undefined && pathKind(file) === "none") throw refuse();
  if (pathKind(file) === "none" && pathKind(`${path}/model/config.json`) === "file") {
    throw new FileError(file, "read", `there is no such file; the model of the run is '${path}/model'`);
  }
  return { ...parseJsonObject(await readBytes(file), { file, what: "model configuration", maxDepth: 32 }) };
}
