/**
 * Saving a sharded checkpoint: every rank writes what it holds, rank 0 the manifest, and a rename makes it one. Files are
 * named and annotated as PyTorch's `HuggingFaceStorageWriter(save_distributed=True)` does (`torch/distributed/checkpoint/
 * hf_storage.py`), so PyTorch reads them too.
 *
 * Invariant: checkpoints that were whole before stay so, whatever fails here.
 *
 * @module
 */
import { at } from "../at.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import { removeQuietly, replaceFile } from "../runtime/files.ts";
import { numelOf } from "../shape.ts";
import { beginCheckpoint, checkpointPath, commitCheckpoint, pruneCheckpoints } from "./directory.ts";
import { groupsOf } from "./group_settings.ts";
import type { JsonObject } from "./json.ts";
import { type Manifest, MANIFEST_FILE, renderManifest } from "./manifest.ts";
import type { Ranks } from "./ranks.ts";
import type { WrittenFile } from "./pieces.ts";
import { render } from "./save_hf.ts";
import { placeBoxes, savedTensors, type Section, writeShardFiles } from "./shard_files.ts";
import { agreeOnWriters } from "./partition.ts";
import { type CheckpointModel, type HeldTensor, modelTensors, optimizerTensors } from "./state_dict.ts";
import { elementPieces } from "./transfer.ts";

/** Options of {@link saveCheckpoint}. */
export interface SaveCheckpointOptions {
  /** The directory of the run's checkpoints; made if need be. */
  readonly directory: string;
  /** Steps taken. */
  readonly step: number;
  /** The model whose parameters are saved. */
  readonly model: CheckpointModel;
  /** Saved with its states if given. */
  readonly optimizer?: Optimizer;
  /** The group of the ranks that hold the model. */
  readonly group: Ranks;
  /** What the trainer needs to go on: seeds, data cursor, schedule. Rank 0's is kept. Must survive JSON. */
  readonly state: JsonObject;
  /** What computes: `runtime`, `version` and so on; `cpuMath` is added. A resume under another one says so. */
  readonly environment?: Readonly<Record<string, string>>;
  /** How many checkpoints remain, this one included; all unless given. */
  readonly keepLast?: number;
}

/** A checkpoint that was saved. */
export interface SavedCheckpoint {
  /** Its directory. */
  readonly path: string;
  /** Bytes of all files. */
  readonly byteLength: number;
}

/**
 * Saves `checkpoint-<step>`. Every rank must call it, between steps.
 *
 * @returns where it lies
 * @throws {FileError} if this rank cannot write (full disk, no permission); {@link CollectiveError} on the others, naming
 *   the rank and its error. What was written is removed, and earlier checkpoints are as they were
 * @throws {ArgumentError} if step or keepLast make no sense
 * @example
 * ```ts ignore
 * await saveCheckpoint({ directory: "out/checkpoints", step, model, optimizer, group, state: { loader: loader.state() } });
 * ```
 */
export async function saveCheckpoint(options: SaveCheckpointOptions): Promise<SavedCheckpoint> {
  const { directory, step, model, optimizer, group, keepLast } = options;
  if (!Number.isSafeInteger(step) || step < 0) throw new ArgumentError(`step must be an integer from 0, got ${step}`);
  if (keepLast !== undefined && !(Number.isSafeInteger(keepLast) && keepLast > 0)) {
    throw new ArgumentError(`keepLast must be a positive integer, got ${keepLast}`);
  }
  const label = `save checkpoint ${step}`;
  const sections = [section("", modelTensors(model), group)];
  if (optimizer !== undefined) sections.push(section("optimizer-", optimizerTensors(model, optimizer), group));
  const path = checkpointPath(directory, step);
  const partial = `${path}.partial`;
  try {
    await group.together(label, () => group.rank === 0 && beginCheckpoint(directory, step));
    const written = await group.together(
      label,
      () =>
        writeShardFiles(sections, partial, group.rank, ({ source, local, box }) => {
          return elementPieces(source, local, numelOf(box.sizes), float32);
        }),
    );
    const texts = group.exchangeText(JSON.stringify([...written]), label);
    const files = new Map(texts.flatMap((text): readonly (readonly [string, WrittenFile])[] => JSON.parse(text)));
    return await group.together(label, () => {
      const byteLength = [...files.values()].reduce((sum, file) => sum + file.byteLength, 0);
      if (group.rank === 0) {
        replaceFile(`${partial}/config.json`, render(model.hfConfig));
        replaceFile(`${partial}/${MANIFEST_FILE}`, renderManifest(manifestOf(options, sections, files)));
        commitCheckpoint(directory, step);
        if (keepLast !== undefined) pruneCheckpoints(directory, path, keepLast);
      }
      return { path, byteLength };
    });
  } catch (error) {
    if (group.rank === 0) removeQuietly(partial);
    throw error;
  }
}

/** Agrees on who writes what. */
function section(prefix: string, tensors: readonly HeldTensor[], ranks: Ranks): Section<HeldTensor> {
  const writers = agreeOnWriters(tensors, ranks);
  return placeBoxes(
    prefix,
    tensors.map((source, i) => {
      const { name, shard: { shape } } = source;
      return { source, name, shape, writers: at(writers, i, "writers of tensor") };
    }),
  );
}

function manifestOf(
  { step, model, optimizer, group, state, environment }: SaveCheckpointOptions,
  sections: readonly Section<HeldTensor>[],
  files: Manifest["files"],
): Manifest {
  const [parameters, states] = sections;
  return {
    step,
    worldSize: group.size,
    environment: environmentOf(model, environment),
    files,
    model: savedTensors(parameters),
    optimizer: optimizer === undefined ? undefined : {
      tensors: savedTensors(states),
      stepsTaken: optimizer.stepsTaken,
      steps: new Map([...model.namedParameters()].map(([name, parameter]) => [name, optimizer.stepsOf(parameter)])),
      groups: groupsOf(model, optimizer),
    },
    state,
  };
}

/** What computes, with the provider of matrix products. */
export function environmentOf(
  model: CheckpointModel,
  environment: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  for (const [, parameter] of model.namedParameters()) return { cpuMath: parameter.device.mathName, ...environment };
  return environment;
}
