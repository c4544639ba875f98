/**
 * Units that share weights are made one: a weight is gathered and reduced with one unit only.
 *
 * @module
 */
import { ModuleContainer } from "../nn/container.ts";
import type { Module } from "../nn/module.ts";
import { Parameter } from "../tensor/parameter.ts";
import { childrenOf } from "./anatomy.ts";
import type { PlannedUnit } from "./plan.ts";

/** One use of a parameter: the unit around it (undefined for the root's), and the module that holds the parameter in a field. */
interface ParameterUse {
  readonly unit: PlannedUnit | undefined;
  readonly owner: Module;
}

/** Makes one unit of all units that use one weight, and of a module of the root that uses the weight as well. */
export function mergeTied(
  model: Module,
  planned: readonly PlannedUnit[],
): { readonly units: readonly PlannedUnit[]; readonly notes: readonly string[] } {
  let units = planned;
  const notes: string[] = [];
  for (const [parameter, uses] of usesOf(model, planned)) {
    // Units change as they are merged: the present units are looked up by their modules.
    const now = uses.map(({ unit, owner }) => ({
      owner,
      unit: unit === undefined ? units.find((one) => holds(one, owner)) : units.find((one) => includes(one, unit)),
    }));
    const tied = units.filter((unit) => now.some((use) => use.unit === unit));
    const others = now.flatMap(({ unit, owner }) => unit === undefined ? [owner] : []);
    if (tied.length === 0 || tied.length + others.length < 2) continue;
    const rest = units.filter((unit) => !tied.includes(unit));
    const joinable = others.every((owner) => owner !== model && !(owner instanceof ModuleContainer));
    const all = new Set([...tied.flatMap((unit) => [...unit.modules.values()]), ...others]);
    const modules = new Map([...model.namedModules()].filter(([, module]) => all.has(module)));
    const weight = parameter.named ? `'${parameter.fqn}'` : "a weight";
    const list = [...modules.keys()].map((name) => name === "" ? "the root" : `'${name}'`).join(", ");
    notes.push(
      joinable
        ? `One unit is made of ${list}, as they share ${weight}`
        : `${list} belong to the root's unit, as they share ${weight}`,
    );
    units = joinable ? [...rest, merged(tied, modules)] : rest;
  }
  return { units, notes };
}

function merged(units: readonly PlannedUnit[], modules: PlannedUnit["modules"]): PlannedUnit {
  const isKept = units.some(({ free }) => free === false);
  return {
    modules,
    free: isKept ? false : units.find(({ free }) => free !== undefined)?.free,
    cpuOffload: units.some(({ cpuOffload }) => cpuOffload),
    mixedPrecision: units.some(({ mixedPrecision }) => mixedPrecision),
  };
}

/** All uses of parameters that are used more than once, in the order of the tree. */
function usesOf(model: Module, units: readonly PlannedUnit[]): ReadonlyMap<Parameter, readonly ParameterUse[]> {
  const uses = new Map<Parameter, ParameterUse[]>();
  const seen = new Set<Module>();
  const visit = (module: Module, around: PlannedUnit | undefined): void => {
    if (seen.has(module)) return;
    seen.add(module);
    const unit = units.find((one) => holds(one, module)) ?? around;
    for (const [, child] of module.children()) {
      if (child instanceof Parameter) uses.set(child, [...uses.get(child) ?? [], { unit, owner: module }]);
    }
    for (const child of childrenOf(module)) visit(child, unit);
  };
  visit(model, undefined);
  return new Map([...uses].filter(([, all]) => all.length > 1));
}

function holds(unit: PlannedUnit, module: Module): boolean {
  return [...unit.modules.values()].includes(module);
}

/** True if a unit has all modules of another unit. */
function includes(unit: PlannedUnit, other: PlannedUnit): boolean {
  return [...other.modules.values()].every((module) => holds(unit, module));
}
