/**
 * The settings of parameter groups in a checkpoint: saved so that a resume which trains otherwise says so.
 *
 * @module
 */
import type { JsonObject } from "../../json.ts";
import type { Optimizer } from "../../optim/optimizer.ts";
import type { NamedParts } from "./state_dict.ts";

/** The settings of one group, and the FQNs of its parameters. */
export interface SavedGroup {
  /** FQNs of its parameters. */
  readonly parameters: readonly string[];
  /** The group's settings by name; a schedule is its text. */
  readonly settings: JsonObject;
}

/** The present groups of an optimizer. */
export function groupsOf(model: NamedParts, optimizer: Optimizer): readonly SavedGroup[] {
  const names = new Map([...model.namedParameters()].map(([name, parameter]) => [parameter, name]));
  return optimizer.groups.map(({ parameters, schedule, ...settings }) => ({
    parameters: parameters.map((parameter) => names.get(parameter) ?? parameter.fqn),
    settings: {
      ...settings,
      schedule: typeof schedule === "function" ? "a function of the step" : schedule?.text ?? "none",
    },
  }));
}

/** Compares two lists of groups; gives a line for each setting and pair of values that differ. */
export function compareGroups(saved: readonly SavedGroup[], now: readonly SavedGroup[]): readonly string[] {
  const before = new Map(saved.flatMap(({ parameters, settings }) => parameters.map((name) => [name, settings])));
  const changes = new Map<string, string[]>();
  for (const { parameters, settings } of now) {
    for (const name of parameters) {
      const old = before.get(name);
      if (old === undefined) continue;
      for (const key of new Set([...Object.keys(old), ...Object.keys(settings)])) {
        const [was, is] = [old[key], settings[key]].map((value) => JSON.stringify(value) ?? "not set");
        if (was === is) continue;
        const change = `${key} was ${was}, is ${is}`;
        changes.set(change, [...changes.get(change) ?? [], name]);
      }
    }
  }
  return [...changes].map(([change, [first, ...others]]) => {
    const rest = others.length === 0 ? "" : ` and ${others.length} other${others.length === 1 ? "" : "s"}`;
    return `${change} (of '${first}'${rest})`;
  });
}
