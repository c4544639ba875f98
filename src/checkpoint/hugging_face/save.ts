/**
 * Writing a Hugging Face directory from a model, sharded or unsharded. Every rank writes its own elements into their places of
 * the same files, so no rank holds the full model and nothing is sent.
 *
 * Invariant: each file is written aside and renamed when every rank's part of it is on the disk; what a directory held
 * before is removed only when its successor is in place.
 *
 * @module
 */
import { requireKnownKeys } from "../../config/known_keys.ts";
import { lockFolder } from "../../locks/folder_lock.ts";
import { type DType, float32 } from "../../dtype.ts";
import { CheckpointError } from "../../errors.ts";
import {
  fileByteLength,
  listDirectory,
  openWritable,
  removePath,
  removeQuietly,
  renamePath,
  replaceFile,
  syncDirectory,
} from "../../runtime/files.ts";
import { placedBoxes, sharedSlices } from "../../tensor/shard_layout.ts";
import { withTokenizer, writeCompanions } from "../format/companions.ts";
import { type HfShardPlan, INDEX_FILE, planHfShards, SINGLE_FILE } from "../format/hf_index.ts";
import { ALONE, type Ranks, requireRanks } from "../format/ranks.ts";
import { renderHeader } from "../format/safetensors_header.ts";
import { agreeOnWriters } from "../state_dict/partition.ts";
import { requireSavable, tensorsOf } from "../state_dict/savable.ts";
import { type DirectoryTensor, heldPart, type HeldTensor, type SavableModel } from "../state_dict/state_dict.ts";
import { elementPieces, requireStorable } from "../state_dict/transfer.ts";

/** transformers' limit. */
export const MAX_SHARD_BYTES = 5e9;

/** Names of files that a killed save left behind. */
const LEFTOVER = /^\.model\b.*\.safetensors\.partial$/;

/** Names of shards, of any number. */
const SHARD_NAME = /^model-\d{5}-of-\d{5}\.safetensors$/;

/** Options of {@link saveHfDirectory}. */
export interface SaveHfOptions {
  /** A tokenizer's files, copied under their own names in place of those that the model has. @default the model's */
  readonly tokenizerFiles?: readonly string[];
  /** The dtype that weights are written in: float32 (default), bfloat16 or float16 (rounded to nearest-even). */
  readonly dtype?: DType;
  /** Most bytes of tensors in one file. @default 5e9, like transformers */
  readonly maxShardBytes?: number;
  /** The `generation_config.json`. @default the model's, where it has one */
  readonly generationConfig?: Readonly<Record<string, unknown>>;
}

/** One file being written. */
interface WeightFile extends ReturnType<typeof renderHeader> {
  readonly file: string;
  readonly aside: string;
}

/**
 * Writes weights and config of a model so that `transformers` loads them, over what the directory may hold, and the small
 * files that the model came with: tokenizer, chat template, generation settings. Every rank must call it. Tied tensors
 * are stored once.
 *
 * @param model any module: one that `openModel` did not make has no `config.json`, and its tensors are named as its fields
 * @param ranks the group of the ranks that hold the model; left out by a process on its own
 * @throws {ArgumentError} if the model cannot be saved as it is, before anything is written
 * @throws {FileError} if a file cannot be written; the other ranks get a {@link CollectiveError}. What the directory held
 *   is then as it was, unless the failure came while files were being renamed
 * @throws {FileError} with code `EBUSY` if another process is writing in the directory, naming it: nothing is changed
 * @throws {UnsupportedError} for other dtypes
 * @example
 * ```ts ignore
 * await saveHfDirectory(model, "out/model", group, { tokenizerFiles: ["data/tokenizer.json"] });
 * ```
 */
export async function saveHfDirectory(
  model: SavableModel,
  directory: string,
  ranks: Ranks = ALONE,
  options: SaveHfOptions = {},
): Promise<void> {
  const known = { tokenizerFiles: true, dtype: true, maxShardBytes: true, generationConfig: true } as const;
  requireKnownKeys("save a model", options, known);
  requireRanks("save a model", ranks);
  const { dtype = float32, maxShardBytes = MAX_SHARD_BYTES } = options;
  requireStorable(dtype);
  await ranks.together(`save '${directory}'`, () => requireSavable(model, ranks));
  const tensors = tensorsOf(model);
  const plan = planHfShards(tensors.map(({ name, shape }) => ({ name, shape, dtype })), maxShardBytes);
  const parts = plan.shards.map(({ file, specs }): WeightFile => {
    const aside = `${directory}/.${file}.partial`;
    return { ...renderHeader(specs, { format: "pt" }), file: `${directory}/${file}`, aside };
  });
  const held = new Map(tensors.map(({ part }) => [part, heldPart(part.fqn, part)]));
  const writers = agreeOnWriters([...held.values()], ranks);
  // The rank that writes a part writes it into all tensors of the directory that hold some of it.
  const own = new Map([...held].filter((_, i) => writers[i]?.some(({ rank }) => rank === ranks.rank)));
  using locks = new DisposableStack(); // gives the lock up too where another rank fails meanwhile
  const lock = await ranks.together(`begin '${directory}'`, async () => {
    return ranks.rank === 0 ? locks.use(await lockFolder(directory)) : undefined;
  });
  let companions: ReadonlyMap<string, Uint8Array> = new Map();
  try {
    await ranks.together(`begin '${directory}'`, () => {
      if (lock === undefined) return;
      companions = companionsFor(model, options);
      begin(directory, parts);
    });
    await ranks.together(`write weights of '${directory}'`, () => writeOwn(tensors, own, parts, dtype));
    await ranks.together(`finish '${directory}'`, async () => {
      if (ranks.rank === 0) finish(model, directory, plan, parts, { ...options, companions });
    });
  } catch (error) {
    if (ranks.rank === 0) { for (const { aside } of parts) removeQuietly(aside); }
    throw error;
  }
}

/** Small files that are written beside the weights. */
function companionsFor(
  { companions }: SavableModel,
  { tokenizerFiles, generationConfig }: SaveHfOptions,
): ReadonlyMap<string, Uint8Array> {
  const named = tokenizerFiles?.map((file) => [file.slice(file.lastIndexOf("/") + 1), file] as const);
  const files = named === undefined ? companions : withTokenizer(companions, named);
  const contents = new Map(files?.read());
  if (generationConfig !== undefined) {
    contents.set("generation_config.json", new TextEncoder().encode(render(generationConfig)));
  }
  return contents;
}

/** Makes the files, with their headers. */
function begin(directory: string, parts: readonly WeightFile[]): void {
  for (const name of listDirectory(directory)) if (LEFTOVER.test(name)) removePath(`${directory}/${name}`);
  for (const { aside, bytes } of parts) {
    using writer = openWritable(aside, "create");
    writer.write(bytes);
  }
}

/** Writes this rank's elements of all tensors: of the parameters and buffers that are `own` to it. */
function writeOwn(
  tensors: readonly DirectoryTensor[],
  own: ReadonlyMap<DirectoryTensor["part"], HeldTensor>,
  parts: readonly WeightFile[],
  dtype: DType,
): void {
  const byName = new Map(tensors.map((tensor) => [tensor.name, tensor]));
  for (const { aside, entries } of parts) {
    using file = openWritable(aside, "update");
    for (const { name, byteOffset } of entries) {
      const tensor = byName.get(name);
      const held = tensor === undefined ? undefined : own.get(tensor.part);
      if (tensor === undefined || held === undefined) continue;
      for (const { box, local } of placedBoxes(held.shard)) {
        for (const { inFirst, inSecond, length } of sharedSlices(box, tensor.box)) {
          let at = byteOffset + inSecond * dtype.byteLength;
          for (const piece of elementPieces(held, local + inFirst, length, dtype)) {
            file.write(piece, at);
            at += piece.length;
          }
        }
      }
    }
    file.sync();
  }
}

/** Puts all in place, the config last, and removes what it replaces. */
function finish(
  model: SavableModel,
  directory: string,
  plan: HfShardPlan,
  parts: readonly WeightFile[],
  { dtype = float32, companions }: SaveHfOptions & { readonly companions: ReadonlyMap<string, Uint8Array> },
): void {
  for (const { aside, fileLength } of parts) {
    const found = fileByteLength(aside);
    if (found !== fileLength) throw new CheckpointError(aside, `Expected ${fileLength} bytes written, got ${found}`);
  }
  for (const { aside, file } of parts) renamePath(aside, file);
  if (plan.index !== undefined) replaceFile(`${directory}/${INDEX_FILE}`, plan.index);
  const current = new Set([...plan.shards.map(({ file }) => file), ...plan.index === undefined ? [] : [INDEX_FILE]]);
  for (const name of listDirectory(directory)) {
    const weights = name === SINGLE_FILE || name === INDEX_FILE || SHARD_NAME.test(name);
    if (weights && !current.has(name)) removePath(`${directory}/${name}`);
  }
  writeCompanions(directory, companions);
  const config = configFor(model, dtype);
  if (config !== undefined) replaceFile(`${directory}/config.json`, render(config));
  syncDirectory(directory);
}

/**
 * The config of a model's files, as save_pretrained of transformers writes it: with the class of the model, and with the
 * dtype of the files under the key that the config has (`torch_dtype` in transformers 4). All other keys stay, known here
 * or not. Undefined for a module without a config.
 */
export function configFor(
  { hfConfig, hfClass, configChanges }: Pick<SavableModel, "hfConfig" | "hfClass" | "configChanges">,
  dtype: DType,
): Readonly<Record<string, unknown>> | undefined {
  if (hfConfig === undefined) return undefined;
  const keys = ["dtype", "torch_dtype"].filter((key) => key in hfConfig);
  const dtypes = Object.fromEntries((keys.length === 0 ? ["dtype"] : keys).map((key) => [key, dtype.name]));
  // A class of remote code stays what loads the files.
  const isOwn = hfClass !== undefined && hfConfig["auto_map"] === undefined;
  const { architectures, ...rest } = hfConfig;
  const named = isOwn ? [hfClass] : architectures;
  return { ...named === undefined ? {} : { architectures: named }, ...rest, ...configChanges, ...dtypes };
}

/** Keys of a config whose numbers transformers takes as floats only: a 2 must be written 2.0. */
const WHOLE_FLOATS =
  /^( {2}"(?:\w+_(?:alpha|coef|dropout|eps|epsilon|factor|limit|multiplier|noise|pdrop|range|scaling|softcapping|theta))": -?\d+)(,?)$/gm;

/** The JSON text of a config file. */
export function render(value: unknown): string {
  return `${JSON.stringify(value, undefined, 2).replace(WHOLE_FLOATS, "$1.0$2")}\n`;
}
