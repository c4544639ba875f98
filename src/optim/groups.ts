/**
 * Parameter groups of an optimizer: parameters, and the settings that they are updated with.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { Parameter } from "../tensor/parameter.ts";
import { parameterList, requireIterable } from "../tensor/parameter_list.ts";
import { valueText } from "../words.ts";
import type { Schedule, ScheduleFunction } from "./schedule.ts";

/** Settings that all optimizers have. */
export interface OptimizerSettings {
  /** The learning rate; a schedule multiplies it by its factor. */
  learningRate: number;
  /** A factor on the learning rate by step: `cosine`, `linear` or `constant`, or a function of the step. @default always 1 */
  readonly schedule?: Schedule | ScheduleFunction | undefined;
  /** The strength with which weights are drawn to zero. */
  weightDecay: number;
  /**
   * Decay of an average of the weights (EMA): after each step the average is `emaDecay × average + (1 - emaDecay) × weight`. It takes 4
   * bytes an element. @default no average is kept
   */
  readonly emaDecay?: number | undefined;
  /** Steps before the average begins; until then it is a copy of the weights. @default 0: it begins as a copy after the first step */
  readonly emaStart?: number | undefined;
}

/** Parameters with settings of their own, which are plain data. */
export type ParamGroup<S extends OptimizerSettings = OptimizerSettings> = S & {
  readonly parameters: readonly Parameter[];
};

/** Parameters with some settings of their own; the others come from the optimizer's options. */
export type ParamGroupOptions<S extends OptimizerSettings = OptimizerSettings> = Partial<S> & {
  readonly parameters: Iterable<Parameter>;
};

/** The parameters of a group. @throws {ArgumentError} if it has none, as a tensor or a group of PyTorch's, or others */
function parametersOf<S extends OptimizerSettings>(group: ParamGroupOptions<S>): readonly Parameter[] {
  if (typeof group === "object" && group !== null && "parameters" in group) {
    return parameterList("optimize a group", group.parameters);
  }
  const keys = typeof group === "object" && group !== null && "params" in group ? ". Did you mean 'parameters'?" : "";
  throw new ArgumentError(
    `Cannot optimize ${
      valueText(group)
    }: expected parameters, or groups such as { parameters: layer.parameters(), learningRate: 1e-4 }${keys}`,
  );
}

/**
 * The groups of an optimizer: the groups that were given, then a group of all parameters that were given without one.
 *
 * @throws {ArgumentError} if a parameter comes twice
 */
export function groupsOf<S extends OptimizerSettings>(
  parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<S>>,
  defaults: S,
): readonly ParamGroup<S>[] {
  const plain: Parameter[] = [];
  const groups: ParamGroup<S>[] = [];
  for (const item of requireIterable<Parameter | ParamGroupOptions<S>>("optimize parameters", parameters)) {
    if (item instanceof Parameter) plain.push(item);
    else groups.push({ ...defaults, ...item, parameters: parametersOf(item) });
  }
  if (plain.length > 0) groups.push({ ...defaults, parameters: plain });
  const seen = new Set<Parameter>();
  for (const parameter of groups.flatMap((group) => group.parameters)) {
    if (seen.has(parameter)) throw new ArgumentError(`Parameter '${parameter.fqn}' is given to the optimizer twice`);
    seen.add(parameter);
  }
  return groups;
}
