/**
 * Checkpoints as they lie on the disk, without a model and without other ranks: sharded ones, Hugging Face directories and
 * PyTorch's shards, all as tables of tensors that can be read in their row-major order.
 *
 * @module
 */
import { float32 } from "../../dtype.ts";
import { CheckpointError } from "../../errors.ts";
import { pathKind } from "../../runtime/files.ts";
import { numelOf } from "../../shape.ts";
import { fullBox, sharedSlices } from "../../tensor/shard_layout.ts";
import type { StoredTensor } from "../format/dcp_shards.ts";
import { openHfWeights } from "../format/hf_index.ts";
import { openVerified } from "../format/pieces.ts";
import { openSafetensors, type SafetensorsFile } from "../format/safetensors.ts";
import { averagedManifest, requireSharded } from "../sharded/averaged_manifest.ts";
import { readManifest } from "../sharded/find.ts";
import { CONFIG_FILE, type Manifest, MANIFEST_FILE, type SavedTensor } from "../sharded/manifest.ts";
import { readFloats } from "../state_dict/transfer.ts";

/** Elements read at once. */
const PIECE = 1 << 18;

/** A checkpoint that is open for reading. */
export interface StoredCheckpoint extends Disposable {
  readonly path: string;
  /** Undefined where this library did not save it. */
  readonly manifest: Manifest | undefined;
  readonly files: readonly SafetensorsFile[];
  /** Names of all files that were read. */
  readonly fileNames: readonly string[];
  /** Parameters and buffers, by name. */
  readonly model: ReadonlyMap<string, StoredTensor>;
  /** States of the optimizer, by `<FQN>.<state>`. */
  readonly optimizer: ReadonlyMap<string, StoredTensor>;
}

/**
 * Opens a checkpoint, reading and checking what says where its tensors are; sharded ones are checked as they are read.
 *
 * @param averages true to have the averages of the weights in place of these
 * @throws {CheckpointError} {@link FileError} if there is none, or it is not complete, or has no averages
 */
export async function openStored(path: string, averages: boolean = false): Promise<StoredCheckpoint> {
  if (averages) requireSharded(path);
  if (pathKind(`${path}/${MANIFEST_FILE}`) !== "file") {
    const weights = await openHfWeights(path);
    const close = (): void => weights[Symbol.dispose]();
    const { files, fileNames, tensors: model } = weights;
    return { path, manifest: undefined, files, fileNames, model, optimizer: new Map(), [Symbol.dispose]: close };
  }
  const { manifest: read } = await readManifest(path);
  const manifest = averages ? averagedManifest(path, read) : read;
  using opened = new DisposableStack();
  const files = new Map<string, SafetensorsFile>();
  for (const [name, written] of manifest.files) {
    if (name === CONFIG_FILE) continue;
    files.set(name, opened.use(await openSafetensors(`${path}/${name}`, (file) => openVerified(file, written))));
  }
  const tensors = (saved: ReadonlyMap<string, SavedTensor> = new Map()): ReadonlyMap<string, StoredTensor> =>
    new Map([...saved].map(([name, tensor]) => [name, storedTensor(tensor.stored ?? name, tensor, files)]));
  const [model, optimizer] = [tensors(manifest.model), tensors(manifest.optimizer?.tensors)];
  const kept = opened.move();
  return {
    path,
    manifest,
    files: [...files.values()],
    fileNames: [...manifest.files.keys()],
    model,
    optimizer,
    [Symbol.dispose]: () => kept.dispose(),
  };
}

function storedTensor(
  name: string,
  { shape, shares }: SavedTensor,
  files: ReadonlyMap<string, SafetensorsFile>,
): StoredTensor {
  const parts = shares.flatMap(({ file: place, box }) => {
    const file = files.get(place);
    if (file === undefined) return []; // the manifest was checked for that
    const { code, byteLength } = file.get(name);
    const numel = numelOf(box.sizes);
    if (code === float32.safetensors && byteLength === numel * float32.byteLength) return [{ file, box }];
    throw new CheckpointError(file.path, `Expected ${numel} F32, got ${byteLength} bytes of ${code}`, name);
  });
  return { name, code: float32.safetensors, shape, parts };
}

/**
 * The values of a tensor from `start` on, in row-major order and as float32, piece by piece; a piece's memory is used again.
 *
 * @throws {CheckpointError} if a file is damaged
 */
export function* valuesOf(
  { name, shape, parts }: StoredTensor,
  start: number = 0,
  length: number = numelOf(shape) - start,
): Generator<Float32Array<ArrayBuffer>, void> {
  const slices = parts.flatMap(({ file, box }) =>
    sharedSlices(box, fullBox(shape)).map((run) => ({
      file,
      from: run.inFirst,
      offset: run.inSecond,
      length: run.length,
    }))
  ).sort((a, b) => a.offset - b.offset);
  const piece = new Float32Array(Math.min(PIECE, length));
  let next = 0;
  for (let at = start; at < start + length; at += piece.length) {
    const values = piece.subarray(0, Math.min(piece.length, start + length - at));
    const end = at + values.length;
    for (; next < slices.length; next++) {
      const run = slices[next];
      if (run === undefined || run.offset >= end) break;
      const [first, last] = [Math.max(run.offset, at), Math.min(run.offset + run.length, end)];
      if (first < last) {
        readFloats(run.file, name, run.from + first - run.offset, values.subarray(first - at, last - at));
      }
      if (run.offset + run.length > end) break;
    }
    yield values;
  }
}
