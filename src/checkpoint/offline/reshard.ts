/**
 * Rewriting a sharded checkpoint for another number of ranks, by one process that holds a piece of one tensor at a time. Loading
 * needs no such thing; what reads the files otherwise may.
 *
 * @module
 */
import { lockFolder } from "../../locks/folder_lock.ts";
import { float32 } from "../../dtype.ts";
import { ArgumentError, CheckpointError } from "../../errors.ts";
import {
  absolutePath,
  makeDirectory,
  pathExists,
  readBytes,
  removeQuietly,
  renamePath,
  replaceFile,
  syncDirectory,
} from "../../runtime/files.ts";
import { numelOf } from "../../shape.ts";
import { elementSlices, rangeLayout, SHARD_BLOCK } from "../../tensor/shard_layout.ts";
import { companionsOf, writeCompanions } from "../format/companions.ts";
import type { StoredTensor } from "../format/dcp_shards.ts";
import { writtenFile } from "../format/pieces.ts";
import { CONFIG_FILE, MANIFEST_FILE, renderManifest } from "../sharded/manifest.ts";
import { type FileGroup, placeBoxes, type PlacedBox, savedTensors, writeShardFiles } from "../sharded/shard_files.ts";
import type { WritingRank } from "../state_dict/partition.ts";
import { openStored, valuesOf } from "./stored.ts";

/**
 * Writes the checkpoint `from` anew as `to`, in even parts for `worldSize` ranks. All else stays, but for a
 * Hugging Face folder `model/` in it.
 *
 * @returns bytes of tensors written
 * @throws {ArgumentError} if there is something at `to`, or `worldSize` is no positive integer
 * @throws {CheckpointError} if `from` is no sharded checkpoint of this library, or damaged: nothing is at `to` then
 */
export async function reshardCheckpoint(from: string, to: string, worldSize: number): Promise<number> {
  if (!Number.isSafeInteger(worldSize) || worldSize < 1) {
    throw new ArgumentError(`worldSize must be a positive integer, got ${worldSize}`);
  }
  const { folder, name } = placeOf(to);
  using _lock = await lockFolder(folder, { file: `${folder}/.${name}.lock`, removesEmpty: true });
  if (pathExists(to)) throw new ArgumentError(`Cannot write '${to}': it exists; give another name, or remove it`);
  using stored = await openStored(from);
  const { manifest } = stored;
  if (manifest === undefined) {
    throw new CheckpointError(from, "Expected a sharded checkpoint, with a manifest; got weights alone");
  }
  const sections = [["", stored.model], ["optimizer-", stored.optimizer]] as const;
  const placed = sections.map(([prefix, tensors]) => cut(prefix, tensors, worldSize));
  const partial = `${to}.partial`;
  try {
    makeDirectory(partial);
    const files = new Map<string, { readonly byteLength: number; readonly crc32: string }>();
    for (let rank = 0; rank < worldSize; rank++) {
      for (const [name, file] of await writeShardFiles(placed, partial, rank, bytesOf)) files.set(name, file);
    }
    const { optimizer } = manifest;
    const [model, states] = placed.map((section) => savedTensors(section));
    const config = await readBytes(`${from}/${CONFIG_FILE}`);
    replaceFile(`${partial}/${CONFIG_FILE}`, config);
    writeCompanions(partial, companionsOf(from).read());
    const renewed = {
      ...manifest,
      worldSize,
      files: new Map([[CONFIG_FILE, writtenFile(config)], ...files]),
      model: model ?? new Map(),
      optimizer: optimizer === undefined ? undefined : { ...optimizer, tensors: states ?? new Map() },
    };
    replaceFile(`${partial}/${MANIFEST_FILE}`, renderManifest(renewed));
    syncDirectory(partial);
    renamePath(partial, to);
    return [...files.values()].reduce((sum, { byteLength }) => sum + byteLength, 0);
  } catch (error) {
    removeQuietly(partial);
    throw error;
  }
}

/** The folder that something lies in, and its name there. */
function placeOf(path: string): { readonly folder: string; readonly name: string } {
  const absolute = absolutePath(path);
  const at = absolute.lastIndexOf("/");
  return { folder: absolute.slice(0, at) || "/", name: absolute.slice(at + 1) };
}

/** Gives each rank a slice of each tensor, of full blocks, as a flat shard has. */
function cut(prefix: string, tensors: ReadonlyMap<string, StoredTensor>, worldSize: number): FileGroup<StoredTensor> {
  return placeBoxes(
    prefix,
    [...tensors.values()].map((source) => {
      const { name, shape } = source;
      const numel = numelOf(shape);
      const run = Math.ceil(numel / worldSize / SHARD_BLOCK) * SHARD_BLOCK;
      const writers = Array.from({ length: worldSize }, (_, rank): WritingRank => {
        const offset = Math.min(numel, rank * run);
        return { rank, boxes: rangeLayout(shape, offset, Math.min(run, numel - offset)).boxes };
      });
      return { source, name, shape, writers };
    }),
  );
}

/** The bytes of a box, from wherever they lie. */
function* bytesOf({ source, box }: PlacedBox<StoredTensor>): Generator<Uint8Array> {
  const layout = { shape: source.shape, boxes: [box], numel: numelOf(box.sizes) };
  for (const { offset, length } of elementSlices(layout)) {
    for (const values of valuesOf(source, offset, length)) {
      yield new Uint8Array(values.buffer, values.byteOffset, values.length * float32.byteLength);
    }
  }
}
