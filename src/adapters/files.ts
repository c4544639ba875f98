/**
 * Adapters in PEFT's folders: `adapter_config.json` and `adapter_model.safetensors`.
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { lockFolder } from "../locks/folder_lock.ts";
import { type Companions, writeCompanions } from "../checkpoint/format/companions.ts";
import { HfWeights } from "../checkpoint/format/hf_index.ts";
import { parseJsonObject } from "../json.ts";
import { type HfLoadReport, type LoadHfOptions, loadWeights } from "../checkpoint/hugging_face/load.ts";
import { MANIFEST_FILE } from "../checkpoint/sharded/manifest.ts";
import { getModelStateDict } from "../checkpoint/state_dict/model_state.ts";
import { ALONE, type Ranks, requireRanks } from "../checkpoint/format/ranks.ts";
import { openSafetensors, writeSafetensors } from "../checkpoint/format/safetensors.ts";
import { requireSavable, tensorsOf, tiedNamesOf } from "../checkpoint/state_dict/savable.ts";
import type { DirectoryTensor, SavableModel } from "../checkpoint/state_dict/state_dict.ts";
import { at } from "../at.ts";
import { CausalLm } from "../models/causal_lm.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError, CheckpointError, FileError } from "../errors.ts";
import { Embedding } from "../nn/embedding.ts";
import type { Module } from "../nn/module.ts";
import { pathKind, readBytes, removePath, replaceFile, syncDirectory } from "../runtime/files.ts";
import { fullBox } from "../tensor/shard_layout.ts";
import { ADAPTER_CONFIG, adapterConfigOf, type AdapterFacts, readAdapterConfig } from "./config_file.ts";
import { type Lora, loraOf } from "./lora.ts";

/** The file of an adapter's values. */
const ADAPTER_WEIGHTS = "adapter_model.safetensors";

/** PEFT's name of what wraps a model: all names in an adapter's file begin so. */
const WRAPPER = "base_model.model.";

/** The facts of a family's model that files of it have; none of a module of one's own. */
function familyFacts(model: Module): Omit<SavableModel, "namedParameters" | "namedBuffers"> {
  if (!(model instanceof CausalLm)) return { tiedNames: tiedNamesOf(model) };
  const { hfConfig, hfClass, tiedNames, otherFiles } = model;
  return {
    ...{ hfConfig, hfClass, tiedNames, otherFiles },
    get companions(): Companions | undefined {
      return model.companions;
    },
    get configChanges(): SavableModel["configChanges"] {
      return model.configChanges;
    },
  };
}

/** A model without its adapter, as its files have it; the model itself where it has none. */
export function withoutAdapter<M extends Module>(model: M): M | SavableModel {
  const lora = loraOf(model);
  if (lora === undefined) return model;
  return {
    ...familyFacts(model),
    namedParameters: () => [...model.namedParameters()].filter(([, parameter]) => !lora.owns(parameter)),
    namedBuffers: () => model.namedBuffers(),
    directoryTensors: () => tensorsOf(model).filter(({ part }) => !lora.owns(part)),
  };
}

/** A model's part that is trained, as checkpoints have it: its adapter, or the model itself where it has none. */
export function trainedPart<M extends Module>(model: M): M | SavableModel {
  const lora = loraOf(model);
  if (lora === undefined) return model;
  return { ...familyFacts(model), namedParameters: () => lora.namedParameters(), namedBuffers: () => [] };
}

/**
 * An adapter as its files have it.
 *
 * @param stored names of tensors in a file: PEFT writes the tables of embeddings that have an adapter too
 */
function filesOf(lora: Lora, stored: readonly string[] = []): SavableModel {
  const parameters = new Map(Array.from(lora.namedParameters(), ([name, part]) => [name, { name, part }]));
  for (const [name, { layer }] of lora.layers) {
    const base = `${name}.base_layer.weight`;
    if (layer instanceof Embedding && stored.includes(WRAPPER + base)) {
      parameters.set(layer.weight.fqn, { name: base, part: layer.weight });
    }
  }
  const tensors = Array.from(parameters.values(), ({ name, part }): DirectoryTensor => {
    return { name: WRAPPER + name, part, shape: part.globalShape, box: fullBox(part.globalShape) };
  });
  return {
    namedParameters: () => Array.from(parameters, ([name, { part }]) => [name, part] as const),
    namedBuffers: () => [],
    directoryTensors: () => tensors,
    tiedNames: new Map(),
  };
}

/**
 * Reads the settings of an adapter's folder.
 *
 * @throws {FileError} if there is no `adapter_config.json`
 * @throws {CheckpointError} {@link UnsupportedError} if it says what this library does not read
 */
export async function readAdapterFolder(folder: string): Promise<AdapterFacts> {
  const file = `${folder}/${ADAPTER_CONFIG}`;
  if (pathKind(file) === "none") {
    const inside = `${folder}/model`;
    const isRun = pathKind(`${inside}/${ADAPTER_CONFIG}`) === "file";
    if (isRun) throw new FileError(file, "read", `there is no such file; the adapter of the run is '${inside}'`);
    if (pathKind(`${folder}/${MANIFEST_FILE}`) === "file") {
      const remedy = "go on from it with '--resume', and take the adapter that the run writes to its folder 'model'";
      throw new FileError(file, "read", `'${folder}' is a sharded checkpoint and no folder of PEFT; ${remedy}`);
    }
  }
  const json = parseJsonObject(await readBytes(file), { file, what: "adapter configuration", maxDepth: 32 });
  return readAdapterConfig(json, file);
}

/**
 * Loads the values of an adapter that {@link addLora} has added. Every rank must call it.
 *
 * @throws {CheckpointError} listing all names that are missing, unexpected or mis-shaped
 * @throws {FileError} if a file cannot be read
 */
export async function loadAdapterWeights(
  lora: Lora,
  folder: string,
  ranks: Ranks = ALONE,
  options: LoadHfOptions = {},
): Promise<HfLoadReport> {
  requireRanks("load an adapter", ranks);
  const open = async (): Promise<HfWeights> => {
    const file = `${folder}/${ADAPTER_WEIGHTS}`;
    if (pathKind(file) === "none" && pathKind(`${folder}/adapter_model.bin`) === "file") {
      const detail = "It is a Python pickle, which can run code; save the adapter as safetensors with PEFT";
      throw new CheckpointError(`${folder}/adapter_model.bin`, detail);
    }
    return new HfWeights(folder, [await openSafetensors(file)]);
  };
  const own = await ranks.together(`read the header of '${folder}/${ADAPTER_WEIGHTS}'`, async () => {
    if (options.broadcastFromRank0 === true && ranks.rank > 0) return [];
    using weights = await open();
    return [...weights.tensors.keys()];
  });
  const stored: readonly string[] = JSON.parse(
    at(ranks.exchangeText(JSON.stringify(own), "names of an adapter"), 0, "text"),
  );
  return await loadWeights(filesOf(lora, stored), folder, ranks, options, { what: "adapter", open });
}

/** Options of {@link saveAdapter}. */
export interface SaveAdapterOptions {
  /** Small files that are written beside, such as the tokenizer's. @default none */
  readonly companions?: Companions | undefined;
}

/**
 * Writes the adapter of a model, without the model, as PEFT does: `PeftModel.from_pretrained` loads the folder. Values are float32.
 * Each file is written aside and renamed, the settings last. Every rank must call it.
 *
 * @param model one that {@link addLora} was called on
 * @param group the group of the ranks that hold the model; left out by a process on its own
 * @throws {ArgumentError} if the model has no adapter, or its parameters no values
 * @throws {FileError} if a file cannot be written
 * @example
 * ```ts ignore
 * await saveAdapter(model, "out/adapter", run.group);
 * ```
 */
export async function saveAdapter(
  model: Module,
  folder: string,
  group?: ProcessGroup,
  options: SaveAdapterOptions = {},
): Promise<void> {
  requireKnownKeys("save an adapter", options, { companions: true });
  const { companions } = options;
  const lora = loraOf(model);
  if (lora === undefined) throw new ArgumentError("Cannot save an adapter: the model has none; add one by addLora");
  const files = filesOf(lora);
  const ranks: Ranks = group ?? ALONE;
  requireRanks("save an adapter", ranks);
  await ranks.together(`save '${folder}'`, () => requireSavable(files, ranks));
  const state = group === undefined
    ? getModelStateDict(files, { cpuOffload: true })
    : getModelStateDict(files, { group, fullStateDict: true, cpuOffload: true });
  await ranks.together(`write '${folder}'`, async () => {
    if (ranks.rank > 0) return;
    using _lock = await lockFolder(folder);
    const tensors = new Map([...state].map(([name, tensor]) => [WRAPPER + name, tensor]));
    const specs = Array.from(tensors, ([name, { shape }]) => ({ name, shape, dtype: float32 }));
    await writeSafetensors(`${folder}/${ADAPTER_WEIGHTS}`, specs, { format: "pt" }, ({ name }) => {
      const values = tensors.get(name)?.toArray();
      return values === undefined ? [] : [new Uint8Array(values.buffer, values.byteOffset, values.byteLength)];
    });
    if (companions !== undefined) writeCompanions(folder, companions.read());
    // PEFT would take the older pickle where both lie there.
    if (pathKind(`${folder}/adapter_model.bin`) === "file") removePath(`${folder}/adapter_model.bin`);
    replaceFile(`${folder}/${ADAPTER_CONFIG}`, `${JSON.stringify(adapterConfigOf(lora), undefined, 2)}\n`);
    syncDirectory(folder);
  });
}
