/**
 * Loading a sharded checkpoint onto any number of ranks: each reads the elements that it holds from whichever files have
 * them. Finding and checking checkpoints is left to `find.ts`.
 *
 * @module
 */
import { float32 } from "../dtype.ts";
import { CheckpointError } from "../errors.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import { numelOf } from "../shape.ts";
import { findCheckpoint } from "./find.ts";
import { compareGroups, groupsOf } from "./group_settings.ts";
import type { JsonObject } from "./json.ts";
import type { Manifest, SavedTensor } from "./manifest.ts";
import { openSafetensors, type SafetensorsFile } from "./safetensors.ts";
import { environmentOf, type SaveCheckpointOptions } from "./save.ts";
import {
  type CheckpointModel,
  type HeldTensor,
  modelTensors,
  openModelForWriting,
  optimizerTensors,
  requireFit,
} from "./state_dict.ts";
import { readElements } from "./transfer.ts";

/** Options of {@link loadCheckpoint}; as for {@link saveCheckpoint}, but the group may be of another size. */
export interface LoadCheckpointOptions
  extends Pick<SaveCheckpointOptions, "directory" | "model" | "optimizer" | "group" | "environment"> {
  /** `auto` (default), the newest complete checkpoint, or the path of a checkpoint. */
  readonly from?: string;
}

/** A checkpoint that was loaded. */
export interface LoadedCheckpoint {
  /** Its directory. */
  readonly path: string;
  /** Steps taken. */
  readonly step: number;
  /** The trainer's own. */
  readonly state: JsonObject;
  /** Newer checkpoints that were not whole, each with what is wrong with it. */
  readonly skipped: readonly string[];
  /** What differs from the run that saved, e.g. `cpuMath was onednn, is wasm`: results need not agree to the bit. */
  readonly differences: readonly string[];
  /** Settings of the optimizer's groups that are not as they were saved; the optimizer's own are kept. */
  readonly changes: readonly string[];
  /** Bytes of tensors that this rank read. */
  readonly bytesRead: number;
}

/**
 * Loads a checkpoint into a model and its optimizer. Every rank must call it.
 *
 * @returns what is needed to go on, or `undefined` if `auto` is wanted and there is no checkpoint
 * @throws {CheckpointError} if the checkpoint is not whole (naming the last whole one), or does not fit (listing all names)
 * @throws {FileError} if a file cannot be read; the other ranks get a {@link CollectiveError}
 * @example
 * ```ts ignore
 * const loaded = await loadCheckpoint({ directory: "out/checkpoints", model, optimizer, group });
 * ```
 */
export async function loadCheckpoint(options: LoadCheckpointOptions): Promise<LoadedCheckpoint | undefined> {
  const { directory, from = "auto", model, optimizer, group } = options;
  const found = await findCheckpoint(directory, from, group);
  if (found === undefined) return undefined;
  const { path, manifest, skipped } = found;
  const label = `load '${path}'`;
  using reader = new ShardReader(path);
  await group.together(label, () => checkFit(path, manifest, model, optimizer));
  const saved = manifest.optimizer;
  await group.together(label, async () => {
    using _writing = openModelForWriting(model);
    for (const tensor of modelTensors(model)) await reader.read(tensor, manifest.model);
  });
  await group.together(label, async () => {
    if (optimizer === undefined || saved === undefined) return;
    for (const tensor of optimizerTensors(model, optimizer)) await reader.read(tensor, saved.tensors);
    for (const [name, parameter] of model.namedParameters()) {
      const steps = saved.steps.get(name);
      if (steps === undefined) throw new CheckpointError(path, `it has no count of the steps of '${name}'`);
      optimizer.setSteps(parameter, steps);
    }
    optimizer.stepsTaken = saved.stepsTaken;
  });
  return {
    path,
    step: manifest.step,
    state: manifest.state,
    skipped,
    differences: differencesOf(manifest, environmentOf(model, options.environment), group.size),
    changes: optimizer === undefined || saved === undefined
      ? []
      : compareGroups(saved.groups, groupsOf(model, optimizer)),
    bytesRead: reader.bytesRead,
  };
}

/** Compares names and shapes. */
function checkFit(path: string, manifest: Manifest, model: CheckpointModel, optimizer: Optimizer | undefined): void {
  const fit = (what: string, wanted: readonly HeldTensor[], saved: ReadonlyMap<string, SavedTensor>): void => {
    const found = [...saved].map(([name, { shape }]) => [name, { shape, code: float32.safetensors }] as const);
    const expected = new Map(wanted.map(({ name, shard }) => [name, shard.shape]));
    requireFit(expected, new Map(found), { where: path, what, codes: [float32.safetensors] });
  };
  fit("model", modelTensors(model), manifest.model);
  if (optimizer === undefined) return;
  if (manifest.optimizer === undefined) {
    const detail = "Expected the states of the optimizer, got none: it was saved without an optimizer";
    throw new CheckpointError(path, detail);
  }
  fit("optimizer", optimizerTensors(model, optimizer), manifest.optimizer.tensors);
}

/** Reads elements from the files of a checkpoint, which are opened when first needed. */
class ShardReader implements Disposable {
  bytesRead = 0;
  readonly #path: string;
  readonly #files = new Map<string, SafetensorsFile>();

  constructor(path: string) {
    this.#path = path;
  }

  /** Reads what this rank holds of a tensor from the shares that have it. */
  async read(tensor: HeldTensor, all: ReadonlyMap<string, SavedTensor>): Promise<void> {
    const saved = all.get(tensor.name);
    if (saved === undefined) throw new CheckpointError(this.#path, "There is no tensor of that name", tensor.name);
    for (const { file, box } of saved.shares) {
      this.bytesRead += await readElements(tensor, box, () => this.#open(file, tensor.name, numelOf(box.sizes)));
    }
  }

  [Symbol.dispose](): void {
    for (const file of this.#files.values()) file.close();
  }

  /** A file in which a tensor has that many elements. */
  async #open(name: string, tensor: string, numel: number): Promise<SafetensorsFile> {
    const file = this.#files.get(name) ?? await openSafetensors(`${this.#path}/${name}`);
    this.#files.set(name, file);
    const { code, byteLength } = file.get(tensor);
    if (code === float32.safetensors && byteLength === numel * float32.byteLength) return file;
    throw new CheckpointError(file.path, `Expected ${numel} F32, got ${byteLength} bytes of ${code}`, tensor);
  }
}

function differencesOf(manifest: Manifest, now: Readonly<Record<string, string>>, worldSize: number): string[] {
  const was: Readonly<Record<string, string>> = { ...manifest.environment, worldSize: String(manifest.worldSize) };
  const is: Readonly<Record<string, string>> = { ...now, worldSize: String(worldSize) };
  return [...new Set([...Object.keys(was), ...Object.keys(is)])].filter((key) => was[key] !== is[key]).map((key) =>
    `${key} was ${was[key] ?? "not recorded"}, is ${is[key] ?? "not recorded"}`
  );
}
