/**
 * Models by folder or config: built from the headers alone, sharded by the caller, then loaded.
 *
 * @module
 */
import { parseJsonObject } from "../checkpoint/json.ts";
import { loadCheckpoint } from "../checkpoint/load.ts";
import { type LoadHfOptions, loadHfWeights } from "../checkpoint/load_hf.ts";
import { MANIFEST_FILE } from "../checkpoint/manifest.ts";
import { saveHfDirectory } from "../checkpoint/save_hf.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { isDry } from "../device/dry/device.ts";
import { ArgumentError, FileError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { buildModel } from "../models/registry.ts";
import { initializeParameters } from "../nn/initialize.ts";
import { shardModel, type ShardModelOptions } from "../plans/shard_model.ts";
import { pathKind, readBytes } from "../runtime/files.ts";
import { writeParameters } from "../tensor/write.ts";
import type { Run } from "./run.ts";

/** Files of a tokenizer that lie beside a model's weights. */
const TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"];

/** A Hugging Face folder or a checkpoint, whose weights are loaded; or a `config.json`, or its contents, for a model from scratch. */
export type ModelSource = string | Readonly<Record<string, unknown>>;

/** Options of {@link openModel}. Those of sharding count with `fsdpPlan` only. */
export interface OpenModelOptions extends Partial<ShardModelOptions>, LoadHfOptions {
  /** What first values are drawn from, where no weights are read. @default 0 */
  readonly seed?: number;
}

/**
 * Builds a model without memory: call `fullyShard` or `replicate` on it, then `model.load()`, by which each rank reads, or
 * draws, its own part. With `fsdpPlan` it is sharded by that plan, over `mesh` or all ranks, and then loaded: no rank ever holds
 * all of it.
 *
 * @throws {FileError} if there is no such folder or file
 * @throws {UnsupportedError} if the family or an option of it is not implemented
 * @throws {ConfigError} if the config does not fit the family, or the plan the model
 * @throws {ArgumentError} if options of sharding are given and no plan
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
  { device, group }: Pick<Run, "device" | "group">,
  source: ModelSource,
  { seed = 0, broadcastFromRank0 = false, fsdpPlan, mesh, ...sharding }: OpenModelOptions = {},
): Promise<CausalLm> {
  const [inert] = fsdpPlan === undefined ? Object.keys({ ...mesh === undefined ? {} : { mesh }, ...sharding }) : [];
  if (inert !== undefined) {
    throw new ArgumentError(
      `Cannot use '${inert}' without a plan: give fsdpPlan as well, or call fullyShard on the model`,
    );
  }
  const folder = typeof source === "string" && pathKind(source) === "directory" ? source : undefined;
  const hfConfig = typeof source === "string" ? await readHfConfig(source) : source;
  const model = buildModel(device, hfConfig);
  const tokenizerFiles = folder === undefined
    ? []
    : TOKENIZER_FILES.map((name) => `${folder}/${name}`).filter((file) => pathKind(file) === "file");
  model.files = {
    folder,
    load: async (options) => {
      const reading = { broadcastFromRank0, ...options };
      if (isDry(device)) materialize(model);
      else if (folder === undefined) initializeParameters(model, requireSameSeed(seed, group));
      else if (pathKind(`${folder}/${MANIFEST_FILE}`) === "file") {
        await loadCheckpoint({ directory: folder, from: folder, model, group, ...reading });
      } else await loadHfWeights(model, folder, group, reading);
    },
    save: (directory, options) => saveHfDirectory(model, directory, group, { tokenizerFiles, ...options }),
  };
  if (fsdpPlan !== undefined) {
    shardModel(model, { ...sharding, fsdpPlan, mesh: mesh ?? group });
    await model.load();
  }
  return model;
}

/** Gives a model its memory, whatever its values are. */
function materialize(model: CausalLm): void {
  writeParameters(model.parameters(), () => {});
  for (const [, buffer] of model.namedBuffers()) buffer.materialize();
}

/** Refuses ranks that would draw parts of different models. */
function requireSameSeed(seed: number, group: ProcessGroup): number {
  const seeds = group.exchangeText(String(seed), "seeds");
  if (new Set(seeds).size === 1) return seed;
  throw new ArgumentError(`Cannot draw a model from seeds ${seeds.join(", ")}, by rank: give every rank the same`);
}

/** Reads a `config.json`, or that of a Hugging Face folder. */
export async function readHfConfig(path: string): Promise<Readonly<Record<string, unknown>>> {
  const file = pathKind(path) === "file" ? path : `${path}/config.json`;
  if (pathKind(file) === "none" && pathKind(`${path}/model/config.json`) === "file") {
    throw new FileError(file, "read", `there is no such file; the model of the run is '${path}/model'`);
  }
  return { ...parseJsonObject(await readBytes(file), { file, what: "model configuration", maxDepth: 32 }) };
}
