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
import { ArgumentError, InternalError } from "../errors.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import { removeQuietly, replaceFile } from "../runtime/files.ts";
import { numelOf } from "../shape.ts";
import { placedBoxes } from "../tensor/shard_layout.ts";
import { beginCheckpoint, checkpointPath, commitCheckpoint, pruneCheckpoints } from "./directory.ts";
import { groupsOf } from "./group_settings.ts";
import type { JsonObject } from "./json.ts";
import { type Manifest, MANIFEST_FILE, renderManifest, type SavedShare } from "./manifest.ts";
import type { Ranks } from "./ranks.ts";
import type { WrittenFile } from "./pieces.ts";
import { writeSafetensors } from "./safetensors.ts";
import { render } from "./save_hf.ts";
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

/** Tensors that are saved under one kind of file name. */
interface Section {
  readonly tensors: readonly HeldTensor[];
  readonly boxes: readonly PlacedBox[];
}

/** A box and the file that holds it. */
interface PlacedBox extends SavedShare {
  readonly tensor: HeldTensor;
  readonly rank: number;
  /** First element, counted in the memory of its rank. */
  readonly local: number;
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
    const written = await group.together(label, () => writeShards(sections, partial, group.rank));
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

/** Agrees on who writes what. A file holds one box of a name, so a rank's k-th box of a tensor goes into its k-th file. */
function section(prefix: string, tensors: readonly HeldTensor[], ranks: Ranks): Section {
  const number = (value: number): string => String(value).padStart(5, "0");
  const writers = agreeOnWriters(tensors, ranks);
  const boxes = tensors.flatMap((tensor, i) =>
    at(writers, i, "writers of tensor").flatMap(({ rank, boxes }) =>
      placedBoxes({ ...tensor.shard, boxes }).map(({ box, local }, k) => ({ tensor, rank, box, local, index: k + 1 }))
    )
  );
  const count = boxes.reduce((most, { index }) => Math.max(most, index), 1);
  const fileOf = (rank: number, index: number): string =>
    `${prefix}shard-${number(rank + 1)}-model-${number(index)}-of-${number(count)}.safetensors`;
  return { tensors, boxes: boxes.map(({ index, ...placed }) => ({ ...placed, file: fileOf(placed.rank, index) })) };
}

/** Writes this rank's files. */
async function writeShards(
  sections: readonly Section[],
  directory: string,
  rank: number,
): Promise<Manifest["files"]> {
  const written = new Map<string, WrittenFile>();
  for (const section of sections) {
    const own = section.boxes.filter((placed) => placed.rank === rank);
    for (const [file, boxes] of Map.groupBy(own, (placed) => placed.file)) {
      const byName = new Map(boxes.map((placed) => [placed.tensor.name, placed]));
      const sharding = boxes.map(({ tensor, box }) => [tensor.name, { saved_offsets: box.offsets }] as const);
      const result = await writeSafetensors(
        `${directory}/${file}`,
        boxes.map(({ tensor, box }) => ({ name: tensor.name, shape: box.sizes, dtype: float32 })),
        { DCP_SHARDING_INFO: JSON.stringify(Object.fromEntries(sharding)), DCP_VERSION: "1.0", format: "pt" },
        ({ name }) => {
          const placed = byName.get(name);
          if (placed === undefined) throw new InternalError(`no box of '${name}' for ${file}`);
          return elementPieces(placed.tensor, placed.local, numelOf(placed.box.sizes), float32);
        },
      );
      written.set(file, result);
    }
  }
  return written;
}

function manifestOf(
  { step, model, optimizer, group, state, environment }: SaveCheckpointOptions,
  sections: readonly Section[],
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

function savedTensors(section: Section | undefined): Manifest["model"] {
  const shares = Map.groupBy(section?.boxes ?? [], ({ tensor }) => tensor);
  return new Map(
    section?.tensors.map((tensor) => [tensor.name, {
      shape: tensor.shard.shape,
      shares: (shares.get(tensor) ?? []).map(({ file, box }) => ({ file, box })),
    }]),
  );
}

/** What computes, with the provider of matrix products. */
export function environmentOf(
  model: CheckpointModel,
  environment: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  for (const [, parameter] of model.namedParameters()) return { cpuMath: parameter.device.mathName, ...environment };
  return environment;
}
