/**
 * A model's values as an object, and back: PyTorch's `get_model_state_dict` and `set_model_state_dict`.
 *
 * @module
 */
import { ArgumentError } from "../../errors.ts";
import { type LoadReport, modelTensors, type NamedParts, openModelForWriting } from "./state_dict.ts";
import {
  readState,
  requireStateDictOptions,
  type StateDictOptions,
  type StateTensor,
  writeState,
} from "./state_tensor.ts";

/** Parameters and saved buffers by FQN; tied ones once. */
export type ModelStateDict = ReadonlyMap<string, StateTensor>;

/**
 * The parameters and saved buffers of a model, float32, under their FQNs.
 *
 * A sharded state dict, the default, needs no other rank. Its tensors are the memory of the model itself: kept over steps
 * they show what the model holds then, until the model is sharded anew.
 * With `fullStateDict` every rank of `group` must call it.
 *
 * @param model sharded, replicated or neither
 * @throws {ArgumentError} if full tensors are wanted and the group of the ranks is not given; of a sharded state dict, when a
 *   tensor without values is read
 * @throws {CollectiveError} if a rank died, or calls something else
 * @example
 * ```ts
 * import { fullyShard, launch } from "fullyshard";
 * import { getModelStateDict, setModelStateDict } from "fullyshard/checkpoint";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * await using run = await launch();
 * const model = new Linear(run.device, 8, 4);
 * fullyShard(model, { mesh: run.mesh });
 * initializeParameters(model, 0);
 * const options = { group: run.group, fullStateDict: true, cpuOffload: true };
 * const state = getModelStateDict(model, options); // all of it on rank 0, nothing on others
 * setModelStateDict(model, state, { ...options, broadcastFromRank0: true });
 * ```
 */
export function getModelStateDict(model: NamedParts, options: StateDictOptions = {}): ModelStateDict {
  requireStateDictOptions("get a model's state dict", options);
  const frozen = options.ignoreFrozenParams === true ? frozenNames(model) : new Set<string>();
  const state = readState(modelTensors(model).filter(({ name }) => !frozen.has(name)), options);
  return new Map([...state].map(([{ name }, tensor]) => [name, tensor]));
}

/**
 * Overwrites parameters and buffers of a model. Every rank that holds the model must call it.
 *
 * @param state each rank's own elements, or full tensors; with `broadcastFromRank0` rank 0's counts alone
 * @returns the missing and the unexpected names: none unless `strict` is false
 * @throws {CheckpointError} listing what is missing, unexpected or of another shape; nothing is written then
 * @throws {ArgumentError} if options do not go together, the model is shared and no group is given, or a parameter would stay
 *   without values
 * @example
 * ```ts ignore
 * setModelStateDict(model, state, { group: run.group });
 * ```
 */
export function setModelStateDict(
  model: NamedParts,
  state: ModelStateDict,
  options: StateDictOptions = {},
): LoadReport {
  requireStateDictOptions("set a model's state dict", options);
  requireGroup(model, options);
  return writeState({
    tensors: modelTensors(model),
    given: state,
    what: "model",
    open: (missing) => openModelForWriting(model, missing),
  }, options);
}

/** Refuses to write alone what several ranks hold. */
export function requireGroup(model: NamedParts, { group }: StateDictOptions): void {
  if (group !== undefined) return;
  for (const [name, { storage: { kind } }] of model.namedParameters()) {
    if (kind === "plain") continue;
    throw new ArgumentError(
      `Cannot set '${name}' alone as it is ${kind}: give the group of its ranks, { group: run.group }`,
    );
  }
}

function frozenNames(model: NamedParts): ReadonlySet<string> {
  return new Set([...model.namedParameters()].filter(([, { requiresGrad }]) => !requiresGrad).map(([name]) => name));
}
