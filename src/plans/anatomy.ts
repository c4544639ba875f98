/**
 * Finds the parts of a model: by its family, else by the names of classes.
 *
 * @module
 */
import { CausalLm, type ModelParts } from "../models/causal_lm.ts";
import { Embedding } from "../nn/embedding.ts";
import { Module } from "../nn/module.ts";

/** Names of transformer blocks' classes, for models of no known family. */
const BLOCK_CLASS = /(?:Layer|Block)$/;

/** Name of a module's class: Hugging Face's where the model's family gives one. */
export function classNameOf(model: Module, module: Module): string {
  const ofFamily = model instanceof CausalLm ? model.classNames.get(module.constructor) : undefined;
  return ofFamily ?? module.constructor.name;
}

/** Names of the classes of all modules below a model, each once. */
export function classNamesIn(model: Module): readonly string[] {
  const below = [...model.namedModules()].slice(1);
  return [...new Set(below.map(([, module]) => classNameOf(model, module)))];
}

/** The transformer blocks of a model, in their order; a block inside another block is a part of the outer block. */
export function blocksOf(model: Module): readonly Module[] {
  if (model instanceof CausalLm) return model.layers;
  const blocks: Module[] = [];
  const visit = (module: Module): void => {
    for (const child of childrenOf(module)) {
      if (BLOCK_CLASS.test(child.constructor.name)) blocks.push(child);
      else visit(child);
    }
  };
  visit(model);
  return [...new Set(blocks)];
}

/** Embeddings, final norm and head. Of a model of no family only the embeddings outside of blocks are known. */
export function partsOf(model: Module): ModelParts {
  if (model instanceof CausalLm) return model.parts;
  const inBlocks = new Set(blocksOf(model).flatMap((block) => [...block.namedModules()].map(([, module]) => module)));
  const embeddings = [...model.namedModules()].map(([, module]) => module)
    .filter((module) => module instanceof Embedding && module !== model && !inBlocks.has(module));
  return { embeddings, tail: [] };
}

/** The modules right below one. */
export function childrenOf(module: Module): readonly Module[] {
  return [...module.children()].flatMap(([, child]) => child instanceof Module ? [child] : []);
}

/** A module and all below it, each once, children first. */
export function postOrder(module: Module, seen: Set<Module> = new Set()): readonly Module[] {
  if (seen.has(module)) return [];
  seen.add(module);
  return [...childrenOf(module).flatMap((child) => postOrder(child, seen)), module];
}
