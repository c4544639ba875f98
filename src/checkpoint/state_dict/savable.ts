/**
 * Checks that a model can be saved, before anything is gathered or written. Every `Module` with names and values can.
 *
 * @module
 */
import { ArgumentError } from "../../errors.ts";
import { requireJson } from "../../json.ts";
import { Module } from "../../nn/module.ts";
import { BufferTensor } from "../../tensor/buffer_tensor.ts";
import { Parameter } from "../../tensor/parameter.ts";
import type { Ranks } from "../format/ranks.ts";
import { type DirectoryTensor, modelTensors, plainDirectoryTensors, type SavableModel } from "./state_dict.ts";

/** The greatest depth of nested objects and arrays in a manifest. */
export const MANIFEST_DEPTH = 48;

/** The tensors of a directory of a model: its own, or one for each parameter and saved buffer. */
export function tensorsOf(model: SavableModel): readonly DirectoryTensor[] {
  return [...model.directoryTensors?.() ?? plainDirectoryTensors(model)];
}

/** Names of tensors that are stored under another tensor's name: a model's own, or names of parts found twice in a module's tree. */
export function tiedNamesOf(model: SavableModel): ReadonlyMap<string, string> {
  return model.tiedNames ?? (model instanceof Module ? namesFoundTwice(model) : new Map());
}

function namesFoundTwice(root: Module): ReadonlyMap<string, string> {
  const first = new Map<Parameter | BufferTensor, string>();
  for (const [name, part] of [...root.namedParameters(), ...root.namedBuffers()]) first.set(part, name);
  const tied = new Map<string, string>();
  const walk = (module: Module, prefix: string, above: ReadonlySet<Module>): void => {
    if (above.has(module)) return; // A field that holds what it lies in has no names of its own.
    for (const [field, part] of module.children()) {
      const name = prefix + field;
      if (part instanceof Parameter || part instanceof BufferTensor) {
        const original = first.get(part);
        if (original !== undefined && original !== name) tied.set(name, original);
      } else walk(part, `${name}.`, new Set([...above, module]));
    }
  };
  walk(root, "", new Set());
  return tied;
}

/**
 * Refuses a model that cannot be saved.
 *
 * @throws {ArgumentError} if it is no module or has nothing to save; if two tensors have one name, a tensor has no values, or
 *   is sharded over other ranks than those that save; or if its config holds what JSON does not keep
 */
export function requireSavable(model: SavableModel, { size }: Pick<Ranks, "size">): void {
  const { constructor } = Object(model);
  if (typeof model?.namedParameters !== "function" || typeof model.namedBuffers !== "function") {
    throw new ArgumentError(
      `Cannot save a ${constructor?.name ?? typeof model}: give the Module itself, whose parameters have names`,
    );
  }
  if (model.hfConfig !== undefined) requireJson(model.hfConfig, "config", MANIFEST_DEPTH - 1);
  const names = new Set<string>();
  for (const { name, shard: { shape, numel } } of modelTensors(model)) {
    if (names.has(name)) {
      throw new ArgumentError(`Two parameters are named '${name}': fields become snake_case, so rename one`);
    }
    names.add(name);
    const total = shape.reduce((product, length) => product * length, 1);
    if (size === 1 && numel !== total) {
      throw new ArgumentError(
        `Cannot save '${name}' alone as this rank holds ${numel} of its ${total} elements: give the group of the ranks ` +
          "that hold the rest, such as run.group, on each of them",
      );
    }
  }
  if (names.size === 0) {
    throw new ArgumentError(`Cannot save ${constructor?.name ?? "it"}: it has no parameters and no buffers`);
  }
  for (const [name, { storage }] of model.namedParameters()) {
    if (!storage.hasValues()) {
      throw new ArgumentError(`Cannot save '${name}': it has no values; initialize or load it first`);
    }
  }
  for (const [name, { persistent, buffer }] of model.namedBuffers()) {
    if (persistent && !buffer.hasMemory) {
      throw new ArgumentError(`Cannot save '${name}': it has no values; initialize or load it first`);
    }
  }
}
