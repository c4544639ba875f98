/**
 * The weights of a checkpoint as a Hugging Face directory, written by one process that holds a piece of one tensor at a time.
 *
 * @module
 */
import { lockFolder } from "../../locks/folder_lock.ts";
import { type DType, float32 } from "../../dtype.ts";
import { CheckpointError, InternalError } from "../../errors.ts";
import { replaceFile } from "../../runtime/files.ts";
import { fullBox, sharedSlices } from "../../tensor/shard_layout.ts";
import { refuseAdapter } from "../format/adapters.ts";
import { companionsOf, withMissing, writeCompanions } from "../format/companions.ts";
import { encodeFloats } from "../format/float_bytes.ts";
import { INDEX_FILE, planHfShards } from "../format/hf_index.ts";
import { writeSafetensors } from "../format/safetensors.ts";
import { configFor, MAX_SHARD_BYTES, render, type SaveHfOptions } from "../hugging_face/save.ts";
import { tensorsOf } from "../state_dict/savable.ts";
import type { DirectoryTensor, SavableModel } from "../state_dict/state_dict.ts";
import { requireStorable } from "../state_dict/transfer.ts";
import { type ModelValues, openModelValues } from "./model_values.ts";
import { openStored, valuesOf } from "./stored.ts";

/** Options of {@link mergeCheckpoint}. */
export interface MergeOptions extends Pick<SaveHfOptions, "dtype" | "maxShardBytes"> {
  /** Writes the averages of the weights (`emaDecay`) in place of these. @default false */
  readonly averages?: boolean;
}

/**
 * Writes the weights of a checkpoint so that `transformers` loads them, and the small files that lie beside them.
 *
 * @param model of the same config, with or without memory: says which tensors the directory has. Undefined for a module of
 *   one's own: each tensor is written under its name, without a config
 * @returns bytes of tensors written
 * @throws {CheckpointError} if the checkpoint does not fit the model, or is damaged
 * @throws {FileError} if a file cannot be read or written
 * @throws {UnsupportedError} for other dtypes than float32, bfloat16 and float16
 * @throws {NonFiniteError} for a value that the dtype cannot hold
 */
export async function mergeCheckpoint(
  from: string,
  to: string,
  model: SavableModel | undefined,
  { dtype = float32, maxShardBytes = MAX_SHARD_BYTES, averages = false }: MergeOptions = {},
): Promise<number> {
  requireStorable(dtype);
  refuseAdapter(from);
  // Read before anything is written: the new folder may lie in the checkpoint's.
  const companions = withMissing(model?.companions, companionsOf(from)).read();
  using source = model === undefined ? await namedAsStored(from, averages) : await namedAs(from, model, averages);
  const { tensors, read } = source;
  const { shards, index, totalBytes } = planHfShards(
    [...tensors.values()].map(({ name, shape }) => ({ name, shape, dtype })),
    maxShardBytes,
  );
  using _lock = await lockFolder(to);
  for (const { file, specs } of shards) {
    await writeSafetensors(`${to}/${file}`, specs, { format: "pt" }, ({ name }) => {
      const tensor = tensors.get(name);
      if (tensor === undefined) throw new InternalError(`no tensor '${name}' for ${file}`);
      return bytesOf(read, tensor, dtype);
    });
  }
  if (index !== undefined) replaceFile(`${to}/${INDEX_FILE}`, index);
  writeCompanions(to, companions);
  const config = model === undefined ? undefined : configFor(model, dtype);
  if (config !== undefined) replaceFile(`${to}/config.json`, render(config));
  return totalBytes;
}

/** A tensor of the folder, and the parameter that it is a box of. */
interface MergedTensor extends Pick<DirectoryTensor, "name" | "shape" | "box"> {
  readonly part: Pick<DirectoryTensor["part"], "fqn" | "shape">;
}

/** The checkpoint that the folder is made of, open for reading. */
interface Source extends ModelValues {
  readonly tensors: ReadonlyMap<string, MergedTensor>;
}

/** The tensors of a model's folder, which must be those that are stored. */
async function namedAs(from: string, model: SavableModel, averages: boolean): Promise<Source> {
  const values = await openModelValues(from, model, averages);
  const tensors = new Map(tensorsOf(model).map((tensor) => [tensor.name, tensor]));
  return { tensors, read: values.read, [Symbol.dispose]: () => values[Symbol.dispose]() };
}

/** All stored tensors, by their stored names. */
async function namedAsStored(from: string, averages: boolean): Promise<Source> {
  const stored = await openStored(from, averages);
  return {
    tensors: new Map([...stored.model].map(([name, { shape }]) => {
      return [name, { name, shape, part: { fqn: name, shape }, box: fullBox(shape) }];
    })),
    read: (fqn, start, length) => {
      const source = stored.model.get(fqn);
      if (source === undefined) throw new CheckpointError(from, "There is no tensor of that name", fqn);
      return valuesOf(source, start, length);
    },
    [Symbol.dispose]: () => stored[Symbol.dispose](),
  };
}

function* bytesOf(read: ModelValues["read"], { name, part, box }: MergedTensor, dtype: DType): Generator<Uint8Array> {
  for (const { inSecond, length } of sharedSlices(box, fullBox(part.shape))) {
    for (const values of read(part.fqn, inSecond, length)) yield encodeFloats(dtype, values, name);
  }
}
