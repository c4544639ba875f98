/**
 * Plans a save before any byte is written: the boxes that each rank writes into each file, and the contents of the manifest.
 * Saves that block and saves that do not are planned alike, so they write the same bytes.
 *
 * @module
 */
import type { KnownKeys } from "../../config/known_keys.ts";
import { at } from "../../at.ts";
import { OWN_ATTENTION } from "../../device/attention.ts";
import { float32 } from "../../dtype.ts";
import { ArgumentError, InternalError } from "../../errors.ts";
import { type JsonObject, requireJson } from "../../json.ts";
import type { Optimizer } from "../../optim/optimizer.ts";
import { isKeptHere } from "../../tensor/owners.ts";
import type { Ranks } from "../format/ranks.ts";
import { configFor, render } from "../hugging_face/save.ts";
import { groupsOf } from "../state_dict/group_settings.ts";
import { agreeOnWriters } from "../state_dict/partition.ts";
import { MANIFEST_DEPTH } from "../state_dict/savable.ts";
import { requireSavable } from "../state_dict/savable.ts";
import { type HeldTensor, modelTensors, optimizerTensors, type SavableModel } from "../state_dict/state_dict.ts";
import type { Completion } from "./complete.ts";
import { checkpointPath, partialPath } from "./directory.ts";
import { endPending } from "./pending.ts";
import { requireOptionsOf } from "./required_options.ts";
import { type FileGroup, placeBoxes, savedTensors } from "./shard_files.ts";

/** Options of `saveCheckpoint`. */
export interface SaveCheckpointOptions {
  /** The directory of the training's checkpoints; made if need be. */
  readonly directory: string;
  /** Steps taken. */
  readonly step: number;
  /** The model whose parameters are saved. */
  readonly model: SavableModel;
  /** Saved with its states if given. */
  readonly optimizer?: Optimizer;
  /** The group of the ranks that hold the model. */
  readonly group: Ranks;
  /**
   * The state that the trainer needs to resume: seeds, data cursor, schedule. Rank 0's is kept. Plain objects, arrays, JSON
   * values.
   *
   * @default {}
   */
  readonly state?: JsonObject;
  /**
   * The software and hardware that compute: `runtime`, `version` and so on; `cpuMath` is added, and `attention` where it is not
   * `own`. A resume under another environment reports the differences.
   */
  readonly environment?: Readonly<Record<string, string>>;
  /** The number of checkpoints that remain, this one included. @default all */
  readonly keepLast?: number;
  /** Paths of checkpoints that are never removed; they count among {@link keepLast}. @default none */
  readonly keep?: readonly string[];
}

/** Names of the options of `saveCheckpoint`. */
export const SAVE_OPTIONS: KnownKeys<SaveCheckpointOptions> = {
  ...{ directory: true, step: true, model: true, optimizer: true, group: true, state: true, environment: true },
  ...{ keepLast: true, keep: true },
};

/** A checkpoint that was saved. */
export interface SavedCheckpoint {
  /** The checkpoint's directory. */
  readonly path: string;
  /** Bytes of all files. */
  readonly byteLength: number;
}

/** The plan of a save, which all ranks carry out together. */
export interface SavePlan {
  /** The save's name in messages. */
  readonly label: string;
  /** The path that the finished checkpoint will have. */
  readonly path: string;
  /** The path at which files are written until the checkpoint is complete. */
  readonly partial: string;
  readonly sections: readonly FileGroup<HeldTensor>[];
  /**
   * Collects the work of rank 0 after all files are written, from the present state; it may wait for the device.
   *
   * @throws {ArgumentError} if the state holds what JSON does not keep
   */
  readonly completion: () => Completion;
}

/**
 * Plans a save. Collective.
 *
 * @throws {ArgumentError} if step or keepLast make no sense, an asynchronous save into that directory was not awaited, or the
 *   model cannot be saved as it is
 */
export function planSave(options: SaveCheckpointOptions): SavePlan {
  requireOptionsOf("save a checkpoint", options);
  const { directory, step, model, optimizer, group, keepLast, keep = [] } = options;
  if (!Number.isSafeInteger(step) || step < 0) throw new ArgumentError(`step must be an integer from 0, got ${step}`);
  if (keepLast !== undefined && !(Number.isSafeInteger(keepLast) && keepLast > 0)) {
    throw new ArgumentError(`keepLast must be a positive integer, got ${keepLast}`);
  }
  requireSavable(model, group);
  const label = `save checkpoint ${step}`;
  // Before the ranks agree, so that no rank's Worker writes any more when rank 0 makes the directory.
  endPending(directory, label);
  const parameters = section("", modelTensors(model), group);
  const states = optimizer === undefined ? undefined : section("optimizer-", optimizerTensors(model, optimizer), group);
  const stepsOfOthers = optimizer === undefined ? undefined : stepsInStages(model, optimizer, group);
  return {
    label,
    path: checkpointPath(directory, step),
    partial: partialPath(directory, step),
    sections: states === undefined ? [parameters] : [parameters, states],
    completion: () => {
      const { state = {} } = options;
      requireJson(state, "state", MANIFEST_DEPTH - 1);
      return {
        directory,
        keepLast,
        keep,
        config: render(configFor(model, float32) ?? {}),
        companions: model.companions?.read() ?? new Map(),
        manifest: {
          step,
          worldSize: group.size,
          environment: environmentOf(model, options.environment),
          model: savedTensors(parameters),
          optimizer: optimizer === undefined ? undefined : {
            tensors: savedTensors(states),
            stepsTaken: optimizer.stepsTaken,
            steps: stepsOfOthers ?? ownSteps(model, optimizer),
            groups: groupsOf(model, optimizer),
          },
          state,
        },
      };
    },
  };
}

/** Steps taken by each parameter, as this rank counts them. */
function ownSteps(model: SavableModel, optimizer: Optimizer): ReadonlyMap<string, number> {
  return new Map([...model.namedParameters()].map(([name, parameter]) => [name, optimizer.stepsOf(parameter)]));
}

/**
 * Steps taken by each parameter where ranks keep stages of the model: only the ranks that keep a parameter count them. Collective then;
 * undefined elsewhere, where each rank counts all.
 */
function stepsInStages(
  model: SavableModel,
  optimizer: Optimizer,
  group: Ranks,
): ReadonlyMap<string, number> | undefined {
  const named = [...model.namedParameters()];
  if (named.every(([, { owners }]) => owners === undefined)) return undefined;
  const own = named.filter(([, { owners }]) => isKeptHere(owners));
  const counted = own.map(([name, parameter]) => [name, optimizer.stepsOf(parameter)]);
  const texts = group.exchangeText(JSON.stringify(counted), "steps of stages");
  const all = new Map(texts.flatMap((text): readonly (readonly [string, number])[] => JSON.parse(text)));
  return new Map(named.map(([name]) => {
    const steps = all.get(name);
    if (steps === undefined) throw new InternalError(`no rank keeps '${name}'`);
    return [name, steps];
  }));
}

/** Ranks agree on the boxes that each writes. */
function section(prefix: string, tensors: readonly HeldTensor[], ranks: Ranks): FileGroup<HeldTensor> {
  const writers = agreeOnWriters(tensors, ranks);
  return placeBoxes(
    prefix,
    tensors.map((source, i) => {
      const { name, shard: { shape } } = source;
      return { source, name, shape, writers: at(writers, i, "writers of tensor") };
    }),
  );
}

/** The software and hardware that compute: the providers of matrix products and, if not the device's own kernels, of attention. */
export function environmentOf(
  model: SavableModel,
  environment: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  for (const [, { device: { mathName: cpuMath, traits: { attention } } }] of model.namedParameters()) {
    return { cpuMath, ...attention === OWN_ATTENTION ? {} : { attention }, ...environment };
  }
  return environment;
}
