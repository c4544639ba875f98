/**
 * The plans by which a user chooses the modules that become units, and the units of a model by a plan. Nothing is sharded here.
 *
 * @module
 */
import * as z from "zod";
import { didYouMean } from "../config/nearest.ts";
import { ConfigError } from "../errors.ts";
import { ModuleContainer } from "../nn/container.ts";
import type { Module } from "../nn/module.ts";
import { blocksOf, childrenOf, classNameOf, classNamesIn, partsOf, postOrder } from "./anatomy.ts";
import { valueText } from "../words.ts";
import { mergeTied } from "./tied.ts";

/** The options of a module in a manual plan, in Hugging Face's words. */
export const UNIT_OPTIONS = ["free_full_weight", "keep_full_weight", "cpu_offload", "mixed_precision"] as const;

/**
 * One of {@link UNIT_OPTIONS}: unsharded parameters are freed after the forward, or kept for the backward; shards and gradients are
 * kept in host memory; the unit is computed in bfloat16.
 */
export type UnitOption = typeof UNIT_OPTIONS[number];

/** Embeddings, every block, and final norm with head are units. The last is kept from forward to backward, as it is needed at once. */
export interface AutoPlan {
  /** The kind of plan. */
  readonly mode: "auto";
  /** Options for all units. */
  readonly options?: readonly ("cpu_offload" | "mixed_precision")[] | undefined;
}

/** Modules that are units, by FQN, in which `*` stands for one name: `model.layers.*`. */
export interface ManualPlan {
  /** The kind of plan. */
  readonly mode: "manual";
  /** Options for each module; unsharded parameters are freed after the forward where none is given. */
  readonly modules: Readonly<Record<string, readonly UnitOption[]>>;
}

/** Modules of these classes are units (PyTorch's `transformer_auto_wrap_policy`). */
export interface TransformerPlan {
  /** The kind of plan. */
  readonly mode: "transformer";
  /** Class names, Hugging Face's for its models. @default the class of the model's blocks */
  readonly classes?: readonly string[] | undefined;
}

/** Modules with at least `minNumParams` parameters outside of other units are units (PyTorch's `size_based_auto_wrap_policy`). */
export interface SizePlan {
  /** The kind of plan. */
  readonly mode: "size";
  /** Least number of parameters of a unit. */
  readonly minNumParams: number;
}

/** The full model is one unit. */
export interface NoPlan {
  /** The kind of plan. */
  readonly mode: "none";
}

/** Modules that a function names are units (PyTorch's `lambda_auto_wrap_policy`). */
export interface LambdaPlan {
  /** The kind of plan. */
  readonly mode: "lambda";
  /** True if a module is a unit; must give the same answer on every rank. */
  readonly isUnit: (name: string, module: Module) => boolean;
}

/** The modules that become units; parameters outside of all units belong to the root. */
export type FsdpPlan =
  | "auto"
  | "transformer"
  | "none"
  | AutoPlan
  | ManualPlan
  | TransformerPlan
  | SizePlan
  | NoPlan
  | LambdaPlan;

/** A plan that a file can hold. */
export type FilePlan = Exclude<FsdpPlan, LambdaPlan>;

/** Schema of a {@link FilePlan}. */
export const fsdpPlanSchema: z.ZodType<FilePlan> = z.union([
  z.enum(["auto", "transformer", "none"]),
  z.discriminatedUnion("mode", [
    z.strictObject({
      mode: z.literal("auto"),
      options: z.array(z.enum(["cpu_offload", "mixed_precision"])).optional(),
    }),
    z.strictObject({ mode: z.literal("manual"), modules: z.record(z.string(), z.array(z.enum(UNIT_OPTIONS))) }),
    z.strictObject({ mode: z.literal("transformer"), classes: z.array(z.string()).optional() }),
    z.strictObject({ mode: z.literal("size"), minNumParams: z.int().positive() }),
    z.strictObject({ mode: z.literal("none") }),
  ]),
]);

/** A unit to be. */
export interface PlannedUnit {
  /** The unit's modules by FQN; several are gathered and freed together. */
  readonly modules: ReadonlyMap<string, Module>;
  /** True if unsharded parameters are freed after the forward; undefined: as for all units. */
  readonly free: boolean | undefined;
  readonly cpuOffload: boolean;
  readonly mixedPrecision: boolean;
}

/** The units of a model, inner ones first, without the root. */
export interface ResolvedPlan {
  readonly units: readonly PlannedUnit[];
  /** Options for the root. */
  readonly root: Pick<PlannedUnit, "cpuOffload" | "mixedPrecision">;
  /** Remarks for the user: the units that were merged because they share weights. */
  readonly notes: readonly string[];
}

/** The options of a unit for which the plan gives none. */
const AS_ALL = { free: undefined, cpuOffload: false, mixedPrecision: false } as const;

/**
 * Finds the units of a model.
 *
 * @throws {ConfigError} with every pattern and class that the model does not have, and the nearest that it has
 */
export function resolvePlan(model: Module, plan: FsdpPlan): ResolvedPlan {
  const full: Exclude<FsdpPlan, string> = typeof plan === "string" ? { mode: plan } : plan;
  requireMode(full);
  const named = new Map([...model.namedModules()].filter(([, module]) => module !== model));
  const own = full.mode === "auto" ? full.options ?? [] : [];
  const root = { cpuOffload: own.includes("cpu_offload"), mixedPrecision: own.includes("mixed_precision") };
  const single = (modules: readonly Module[]): PlannedUnit[] =>
    modules.map((module) => ({ ...AS_ALL, ...root, modules: namesOf(named, [module]) }));
  const found = (): readonly PlannedUnit[] => {
    switch (full.mode) {
      case "auto": {
        const { embeddings, tail } = partsOf(model);
        const last = { ...AS_ALL, ...root, free: false, modules: namesOf(named, tail) };
        return [...single([...embeddings, ...requireBlocks(model)]), ...tail.length === 0 ? [] : [last]];
      }
      case "manual":
        return manualUnits(model, named, full);
      case "transformer":
        return single(modulesOfClasses(model, named, full.classes ?? []));
      case "size":
        return single(largeModules(model, full.minNumParams));
      case "none":
        return [];
      case "lambda":
        return single([...named].filter(([name, module]) => full.isUnit(name, module)).map(([, module]) => module));
    }
  };
  const { units, notes } = mergeTied(model, found());
  const order = new Map(postOrder(model).map((module, i) => [module, i]));
  const placeOf = ({ modules }: PlannedUnit): number =>
    Math.min(...modules.values().map((module) => order.get(module) ?? order.size));
  return { units: units.toSorted((a, b) => placeOf(a) - placeOf(b)), root, notes };
}

/** Refuses what is no plan. @throws {ConfigError} with the modes that there are */
function requireMode(plan: Exclude<FsdpPlan, string>): void {
  const modes: readonly (typeof plan.mode)[] = ["auto", "manual", "transformer", "size", "none", "lambda"];
  const isObject = typeof plan === "object" && plan !== null;
  if (isObject && modes.includes(plan.mode)) return;
  const got = isObject ? `mode ${valueText(plan.mode)}` : valueText(plan);
  const expected = `a plan whose mode is ${modes.join(", ")}`;
  throw new ConfigError([{ path: "fsdpPlan", expected, got }]);
}

function namesOf(named: ReadonlyMap<string, Module>, modules: readonly Module[]): ReadonlyMap<string, Module> {
  return new Map([...named].filter(([, module]) => modules.includes(module)));
}

function requireBlocks(model: Module): readonly Module[] {
  const blocks = blocksOf(model);
  if (blocks.length > 0) return blocks;
  const expected = "a model whose blocks are known by their class, such as DecoderLayer or Block";
  const got = `${classNameOf(model, model)}, of ${
    classNamesIn(model).join(", ")
  }. Name the classes, or give a manual plan`;
  throw new ConfigError([{ path: "fsdpPlan", expected, got }]);
}

/** The modules of some classes. Unlike for blocks that are found, those inside others are units too. */
function modulesOfClasses(
  model: Module,
  named: ReadonlyMap<string, Module>,
  classes: readonly string[],
): readonly Module[] {
  if (classes.length === 0) return requireBlocks(model);
  const known = classNamesIn(model);
  const problems = classes.filter((name) => !known.includes(name)).map((name) => {
    const blocks = [...new Set(blocksOf(model).map((block) => classNameOf(model, block)))];
    const block = blocks.length === 0 ? didYouMean(name, known) : `. Its block is '${blocks.join("' and '")}'`;
    return { path: "fsdpPlan.classes", expected: `a class of ${classNameOf(model, model)}`, got: `'${name}'${block}` };
  });
  if (problems.length > 0) throw new ConfigError(problems);
  return [...named.values()].filter((module) => classes.includes(classNameOf(model, module)));
}

/** Modules with enough parameters outside of the chosen modules below them. */
function largeModules(model: Module, minNumParams: number): readonly Module[] {
  const chosen: Module[] = [];
  /** Gives the number of parameters of `module` that chosen modules hold. */
  const visit = (module: Module, isRoot: boolean): number => {
    const numel = [...module.parameters()].reduce((sum, parameter) => sum + parameter.numel, 0);
    if (numel < minNumParams) return 0;
    let held = 0;
    for (const child of childrenOf(module)) held += visit(child, false);
    if (isRoot || numel - held < minNumParams || module instanceof ModuleContainer) return held;
    chosen.push(module);
    return numel;
  };
  visit(model, true);
  return chosen;
}

function manualUnits(
  model: Module,
  named: ReadonlyMap<string, Module>,
  { modules: patterns }: ManualPlan,
): readonly PlannedUnit[] {
  const problems = [];
  const units = new Map<Module, PlannedUnit>();
  const general = new Set([...named.keys()].map((name) => name.replaceAll(/(?<=^|\.)\d+(?=\.|$)/g, "*")));
  for (const [pattern, options] of Object.entries(patterns)) {
    const path = `fsdpPlan.modules['${pattern}']`;
    if (options.includes("free_full_weight") && options.includes("keep_full_weight")) {
      const expected = "'free_full_weight' or 'keep_full_weight'";
      problems.push({ path, expected, got: "both" });
    }
    const parts = pattern.split(".");
    const matches = [...named].filter(([name]) => {
      const own = name.split(".");
      return own.length === parts.length && parts.every((part, i) => part === "*" || part === own[i]);
    });
    if (matches.length === 0) {
      const got = `'${pattern}', which names none${didYouMean(pattern, general)}`;
      problems.push({ path: "fsdpPlan.modules", expected: `modules of ${classNameOf(model, model)}`, got });
    }
    const free = !options.includes("keep_full_weight");
    const [cpuOffload, mixedPrecision] = [options.includes("cpu_offload"), options.includes("mixed_precision")];
    for (const [name, module] of matches) {
      if (units.has(module)) {
        const got = `'${pattern}' and another one for '${name}'`;
        problems.push({ path, expected: "one pattern for each module", got });
      }
      units.set(module, { modules: new Map([[name, module]]), free, cpuOffload, mixedPrecision });
    }
  }
  if (problems.length > 0) throw new ConfigError(problems);
  return joinTail(model, units);
}

/** Makes one unit of final norm and head, where a plan keeps both and nothing else: they run one after the other. */
function joinTail(model: Module, units: ReadonlyMap<Module, PlannedUnit>): readonly PlannedUnit[] {
  const { tail } = partsOf(model);
  const kept = [...units.values()].filter(({ free }) => free === false);
  const [first] = kept;
  const isTail = kept.length === tail.length && tail.every((module) => units.get(module)?.free === false);
  if (first === undefined || !isTail) return [...units.values()];
  const joined = {
    ...first,
    modules: new Map(kept.flatMap(({ modules }) => [...modules])),
    cpuOffload: kept.some(({ cpuOffload }) => cpuOffload),
    mixedPrecision: kept.some(({ mixedPrecision }) => mixedPrecision),
  };
  return [...units.values()].filter((unit) => !kept.includes(unit)).concat(joined);
}
