/**
 * Loading a sharded checkpoint onto any number of ranks: each reads the elements that it holds from whichever files have
 * them. Finding and checking checkpoints is left to `find.ts`.
 *
 * @module
 */
import { float32 } from "../dtype.ts";
import { CheckpointError } from "../errors.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import { writeParametersAsync } from "../tensor/write.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { findCheckpoint } from "./find.ts";
import type { JsonObject } from "./json.ts";
import type { Manifest, SavedTensor } from "./manifest.ts";
import type { Ranks } from "./ranks.ts";
import { openSafetensors, type SafetensorsFile } from "./safetensors.ts";
import { environmentOf } from "./save.ts";
import { intersection } from "./shares.ts";
import { type CheckpointModel, modelTensors, optimizerTensors, type OwnedTensor, requireFit } from "./state_dict.ts";
import { readElements } from "./transfer.ts";

/** Options of {@link loadCheckpoint}. */
export interface LoadCheckpointOptions {
  /** The directory of the run's checkpoints. */
  readonly directory: string;
  /** The newest whole one (`auto`, unless said otherwise), or the path of one. */
  readonly from?: string;
  readonly model: CheckpointModel;
  /** Its states and steps are loaded if given. */
  readonly optimizer?: Optimizer;
  /** The group of the ranks that hold the model; of any size. */
  readonly group: Ranks;
  /** What computes now, as for {@link saveCheckpoint}. */
  readonly environment?: Readonly<Record<string, string>>;
}

/** A checkpoint that was loaded. */
export interface LoadedCheckpoint {
  readonly path: string;
  /** Steps taken. */
  readonly step: number;
  /** The trainer's own. */
  readonly state: JsonObject;
  /** Newer checkpoints that were not whole, each with what is wrong with it. */
  readonly skipped: readonly string[];
  /** What differs from the run that saved, e.g. `cpuMath was onednn, is wasm`: results need not agree to the bit. */
  readonly differences: readonly string[];
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
  const parameters = new Map([...model.namedParameters()].map(([name, parameter]) => [parameter, name]));
  const tensors = new Map(modelTensors(model).map((tensor) => [tensor.name, tensor]));
  await group.together(label, () =>
    writeParametersAsync(parameters.keys(), async (parameter, owned) => {
      const name = parameters.get(parameter) ?? "";
      await reader.read(tensors.get(name), manifest.model.get(name), owned);
    }));
  await group.together(label, async () => {
    if (optimizer === undefined) return;
    for (const tensor of optimizerTensors(model, optimizer)) {
      if (tensor.run.length > 0) await reader.read(tensor, manifest.optimizer?.get(tensor.name), tensor.ptr());
    }
    for (const [parameter, name] of parameters) optimizer.setSteps(parameter, manifest.optimizerSteps.get(name) ?? 0);
  });
  return {
    path,
    step: manifest.step,
    state: manifest.state,
    skipped,
    differences: differencesOf(manifest, environmentOf(model, options.environment), group.size),
    bytesRead: reader.bytesRead,
  };
}

/** Compares names and shapes. */
function checkFit(path: string, manifest: Manifest, model: CheckpointModel, optimizer: Optimizer | undefined): void {
  const fit = (what: string, wanted: readonly OwnedTensor[], saved: ReadonlyMap<string, SavedTensor>): void => {
    const found = [...saved].map(([name, { shape }]) => [name, { shape, code: float32.safetensors }] as const);
    const expected = new Map(wanted.map(({ name, shape }) => [name, shape]));
    requireFit(expected, new Map(found), { where: path, what, codes: [float32.safetensors] });
  };
  fit("model", modelTensors(model), manifest.model);
  if (optimizer === undefined) return;
  if (manifest.optimizer === undefined) {
    throw new CheckpointError(
      path,
      "Expected the states of the optimizer, got none: it was saved without an optimizer",
    );
  }
  fit("optimizer", optimizerTensors(model, optimizer), manifest.optimizer);
}

/** Reads elements from the files of a checkpoint, which are opened when first needed. */
class ShardReader implements Disposable {
  bytesRead = 0;
  readonly #path: string;
  readonly #files = new Map<string, SafetensorsFile>();

  constructor(path: string) {
    this.#path = path;
  }

  /** Reads a rank's elements of a tensor from the shares that have them. */
  async read(tensor: OwnedTensor | undefined, saved: SavedTensor | undefined, ptr: DevicePtr): Promise<void> {
    if (tensor === undefined || saved === undefined) return;
    const { name, run, device } = tensor;
    for (const share of saved.shares) {
      const common = intersection(run, share);
      if (common.length === 0) continue;
      const reader = await this.#open(share.file);
      const { code, byteLength } = reader.get(name);
      const width = float32.byteLength;
      if (code !== float32.safetensors || byteLength !== share.length * width) {
        throw new CheckpointError(
          reader.path,
          `Expected ${share.length} F32, got ${byteLength} bytes of ${code}`,
          name,
        );
      }
      const source = { reader, name, code, width };
      const place = devicePtr(ptr + (common.offset - run.offset) * width);
      const range = { offset: common.offset - share.offset, length: common.length };
      this.bytesRead += await readElements(source, range, device, place);
    }
  }

  [Symbol.dispose](): void {
    for (const file of this.#files.values()) file.close();
  }

  async #open(name: string): Promise<SafetensorsFile> {
    const file = this.#files.get(name) ?? await openSafetensors(`${this.#path}/${name}`);
    this.#files.set(name, file);
    return file;
  }
}

function differencesOf(manifest: Manifest, now: Readonly<Record<string, string>>, worldSize: number): string[] {
  const was: Readonly<Record<string, string>> = { ...manifest.environment, worldSize: String(manifest.worldSize) };
  const is: Readonly<Record<string, string>> = { ...now, worldSize: String(worldSize) };
  return [...new Set([...Object.keys(was), ...Object.keys(is)])].filter((key) => was[key] !== is[key]).map((key) =>
    `${key} was ${was[key] ?? "not recorded"}, is ${is[key] ?? "not recorded"}`
  );
}
