/**
 * Chooses the modules of a model that an adapter changes, by the rules of PEFT (`check_target_module_exists`, `get_pattern_key`).
 *
 * @module
 */
import { nearestName } from "../config/nearest.ts";
import { ArgumentError, UnsupportedError } from "../errors.ts";
import { CausalLm } from "../models/causal_lm.ts";
import { Embedding } from "../nn/embedding.ts";
import { Linear } from "../nn/linear.ts";
import type { Module } from "../nn/module.ts";

/** The word for all linear layers but the head. */
export const ALL_LINEAR = "all-linear";

/** Options that choose modules, as in PEFT's `LoraConfig`. */
export interface TargetOptions {
  /**
   * Modules that get an adapter: ends of their names (`q_proj`), a regular expression of full names, or `all-linear`, all linear
   * layers but the head. @default `all-linear`
   */
  readonly targetModules?: readonly string[] | string;
  /** Modules that get none though they are chosen: ends of names, or a regular expression. @default none */
  readonly excludeModules?: readonly string[] | string | undefined;
  /** Modules that are trained and saved in full: ends of names. @default none */
  readonly modulesToSave?: readonly string[] | undefined;
  /** Numbers of the layers whose modules are chosen; with a list of names only. @default all */
  readonly layersToTransform?: readonly number[] | number | undefined;
  /** Names of the lists of layers that `layersToTransform` counts, e.g. `layers`. @default any list */
  readonly layersPattern?: readonly string[] | string | undefined;
}

/** A module that gets an adapter, with its name. */
export type Target = readonly [name: string, module: Linear | Embedding];

/** A pattern as Python's `re` reads it, of a full name. */
function pattern(text: string, key: string, shown: string = text): RegExp {
  try {
    return new RegExp(text);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new ArgumentError(
      `Cannot use '${shown}' as ${key}: it must be a regular expression of JavaScript too: ${why}`,
    );
  }
}

function fullPattern(text: string, key: string): RegExp {
  return pattern(`^(?:${text})$`, key, text);
}

/** True if a list of name ends, or a regular expression of full names, matches a name. */
function includes(chosen: readonly string[] | string, name: string, key: string): boolean {
  if (typeof chosen === "string") return fullPattern(chosen, key).test(name);
  return chosen.some((end) => name === end || name.endsWith(`.${end}`));
}

/** The first number between dots in a name, behind one of the lists of layers where those are named. */
function layerOf(name: string, lists: readonly string[]): number | undefined {
  const patterns = lists.length === 0
    ? [/^.*?\.[^.]*\.(?<layer>\d+)\./]
    : lists.map((list) => pattern(`^(?:|.*?\\.)${list}\\.(?<layer>\\d+)\\.`, "layersPattern"));
  const found = patterns.map((one) => one.exec(name)?.groups?.["layer"]).find((layer) => layer !== undefined);
  return found === undefined ? undefined : Number(found);
}

function listOf<T>(value: readonly T[] | T | undefined): readonly T[] {
  if (value === undefined) return [];
  return isList(value) ? value : [value];
}

function isList<T>(value: readonly T[] | T): value is readonly T[] {
  return Array.isArray(value);
}

/** True if the options choose a module of that name. */
function isChosen(name: string, options: TargetOptions): boolean {
  const { targetModules = ALL_LINEAR, excludeModules = [], modulesToSave = [] } = options;
  if (excludeModules.length > 0 && includes(excludeModules, name, "excludeModules")) return false;
  if (modulesToSave.some((one) => pattern(`^(?:|.*\\.)${one}(?:$|\\..*)`, "modulesToSave").test(name))) return false;
  if (typeof targetModules === "string" || targetModules.includes(name)) {
    return includes(targetModules, name, "targetModules");
  }
  if (!includes(targetModules, name, "targetModules")) return false;
  const layers = listOf(options.layersToTransform);
  if (layers.length === 0) return true;
  const layer = layerOf(name, listOf(options.layersPattern));
  return layer !== undefined && layers.includes(layer);
}

/**
 * The modules that get an adapter.
 *
 * @throws {ArgumentError} if none is chosen, or some part of the choice chooses none, with the nearest names
 * @throws {UnsupportedError} if one is chosen that has no adapter, naming it
 */
export function targetsOf(model: Module, options: TargetOptions): readonly Target[] {
  const { targetModules = ALL_LINEAR } = options;
  const modules = [...model.namedModules()].filter(([name]) => name !== "");
  const isAll = typeof targetModules === "string" && targetModules.toLowerCase() === ALL_LINEAR;
  const names = isAll ? linearNames(model) : targetModules;
  if (typeof names !== "string") {
    const [unknown] = names.filter((end) => !modules.some(([name]) => includes([end], name, "targetModules")));
    if (unknown !== undefined) throw new ArgumentError(noneOf(`'${unknown}'`, unknown, modules));
  }
  const chosen = modules.filter(([name]) => isChosen(name, { ...options, targetModules: names }));
  const targets: Target[] = [];
  for (const [name, module] of chosen) {
    if (!(module instanceof Linear || module instanceof Embedding)) throw unsupported(name, module, model);
    if (isOfExperts(name, model)) {
      throw new UnsupportedError(
        `Cannot add an adapter to '${name}': PEFT treats modules of this name as fused experts and could not load this adapter; remove ` +
          "it from targetModules",
      );
    }
    targets.push([name, module]);
  }
  if (targets.length > 0) return targets;
  const asked = isAll ? `'${ALL_LINEAR}'` : JSON.stringify(targetModules);
  throw new ArgumentError(noneOf(asked, typeof targetModules === "string" ? targetModules : "", modules));
}

/** Names of all linear layers that PEFT reads as such; a family's head is none. */
function linearNames(model: Module): readonly string[] {
  const linear = [...model.namedModules()].filter(([, module]) => module instanceof Linear).map(([name]) => name);
  return linear.filter((name) => !isOfExperts(name, model));
}

/** Families in whose adapters PEFT 0.21 takes some ends of names for experts' parameters (`_MOE_TARGET_MODULE_MAPPING`). */
const OF_EXPERTS: readonly unknown[] = ["deepseek_v2", "glm4_moe_lite", "glm_moe_dsa", "qwen3_moe", "qwen3_next"];

/** True if PEFT mistakes a layer's name for a layer of experts, so that it could not load an adapter of that layer. */
function isOfExperts(name: string, model: Module): boolean {
  const isOne = model instanceof CausalLm && OF_EXPERTS.includes(model.hfConfig["model_type"]);
  return isOne && /\.(?:gate_proj|up_proj|down_proj|gate)$/.test(name);
}

function noneOf(asked: string, end: string, modules: readonly (readonly [string, Module])[]): string {
  const linear = modules.filter(([, module]) => module instanceof Linear || module instanceof Embedding);
  const ends = [...new Set(linear.map(([name]) => name.slice(name.lastIndexOf(".") + 1)))];
  const nearest = nearestName(end.slice(end.lastIndexOf(".") + 1), ends);
  const hint = nearest === undefined ? "" : ` Did you mean '${nearest}'?`;
  const known = ends.length === 0
    ? "the model has no linear layers"
    : `it has ${ends.map((one) => `'${one}'`).join(", ")}`;
  return `Cannot add an adapter: no module of the model is chosen by targetModules ${asked}; ${known}.${hint}`;
}

function unsupported(name: string, module: Module, model: Module): UnsupportedError {
  const { constructor } = module;
  const className = model instanceof CausalLm ? model.classNames.get(constructor) : undefined;
  const head = model instanceof CausalLm && model.parts.tail.includes(module);
  const remedy = head ? "train it in full, by modulesToSave" : "leave it out of targetModules";
  return new UnsupportedError(
    `Cannot add an adapter to '${name}', a ${
      className ?? constructor.name
    }: linear layers and embeddings have one; ${remedy}`,
  );
}

/**
 * Parameters of modules that are trained in full, by their names.
 *
 * @throws {ArgumentError} if a name chooses none, with the nearest
 * @throws {UnsupportedError} if one of them is tied: a copy would be untied, and the parameter belongs to a second module
 */
export function savedModulesOf(model: Module, modulesToSave: readonly string[] = []): readonly string[] {
  const modules = [...model.namedModules()].filter(([name]) => name !== "");
  const chosen: string[] = [];
  for (const end of modulesToSave) {
    const found = modules.filter(([name]) => name.endsWith(end));
    if (found.length === 0) {
      const nearest = nearestName(end, new Set(modules.map(([name]) => name.slice(name.lastIndexOf(".") + 1))));
      const hint = nearest === undefined ? "" : `. Did you mean '${nearest}'?`;
      throw new ArgumentError(
        `Cannot train '${end}' in full: no module of the model has a name that ends so${hint}`,
      );
    }
    for (const [name, module] of found) {
      if (chosen.some((outer) => name.startsWith(`${outer}.`))) continue;
      requireUntied(name, module, modules);
      chosen.push(name);
    }
  }
  return chosen;
}

function requireUntied(name: string, module: Module, modules: readonly (readonly [string, Module])[]): void {
  const inside = new Set([...module.namedModules()].map(([, member]) => member));
  const own = new Set(module.parameters());
  for (const [other, member] of modules) {
    if (inside.has(member)) continue;
    for (const [, child] of member.children()) {
      if ("storage" in child && own.has(child)) {
        throw new UnsupportedError(
          `Cannot train '${name}' in full: it is tied to '${other}', whose weight would change too; set "tie_word_embeddings" ` +
            "to false in config.json and store the weight twice, or leave it out of modulesToSave",
        );
      }
    }
  }
}

/** The value of a pattern that a name ends with, or else the usual one. */
export function byPattern(
  patterns: Readonly<Record<string, number>>,
  name: string,
  usual: number,
  key: string,
): number {
  const found = Object.entries(patterns).find(([one]) => pattern(`^(?:.*\\.)?(?:${one})$`, key).test(name));
  return found === undefined ? usual : found[1];
}
