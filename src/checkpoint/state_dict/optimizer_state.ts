/**
 * An optimizer's states as an object, and back: PyTorch's `get_optimizer_state_dict` and `set_optimizer_state_dict`.
 *
 * @module
 */
import { at } from "../../at.ts";
import { CheckpointError } from "../../errors.ts";
import type { Optimizer } from "../../optim/optimizer.ts";
import { compareGroups, groupsOf, type SavedGroup } from "./group_settings.ts";
import { requireGroup } from "./model_state.ts";
import { type LoadReport, type NamedParts, optimizerTensors } from "./state_dict.ts";
import {
  readState,
  requireStateDictOptions,
  type StateDictOptions,
  type StateTensor,
  writeState,
} from "./state_tensor.ts";

/** The state that an optimizer has for one parameter. */
export interface ParameterState {
  /** Steps that the parameter took. */
  readonly step: number;
  /** States by PyTorch's names, e.g. `exp_avg`, of the parameter's shape. */
  readonly tensors: ReadonlyMap<string, StateTensor>;
}

/** The states of an optimizer. */
export interface OptimizerStateDict {
  /** States of each parameter, by its FQN. */
  readonly state: ReadonlyMap<string, ParameterState>;
  /** The groups, with the FQNs of their parameters. */
  readonly paramGroups: readonly SavedGroup[];
  /** Calls of `step()`: what schedules go by. */
  readonly stepsTaken: number;
}

/** The differences between a loaded state dict and the model with its optimizer. */
export interface OptimizerLoadReport extends LoadReport {
  /** Settings of groups that are not as they were got; the optimizer's own are kept. */
  readonly changes: readonly string[];
}

/**
 * The states of an optimizer by the FQNs of its parameters; frozen parameters have none. As with {@link getModelStateDict}, a
 * sharded state is the optimizer's own memory, and every rank of `group` asks for a full one.
 *
 * @param model whose parameters the optimizer has
 * @throws {ArgumentError} if the optimizer is of another model, or full tensors are wanted and no group is given
 * @example
 * ```ts
 * import { AdamW, launch } from "fullyshard";
 * import { getOptimizerStateDict } from "fullyshard/checkpoint";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * await using run = await launch();
 * const model = new Linear(run.device, 8, 4);
 * initializeParameters(model, 0);
 * const optimizer = new AdamW(model.parameters(), { learningRate: 1e-3 });
 * const { state } = getOptimizerStateDict(model, optimizer);
 * const moment = state.get("weight")?.tensors.get("exp_avg")?.toArray(); // 32 zeros
 * if (moment?.length !== 32) throw new Error("a state has the shape of its parameter");
 * ```
 */
export function getOptimizerStateDict(
  model: NamedParts,
  optimizer: Optimizer,
  options: StateDictOptions = {},
): OptimizerStateDict {
  requireStateDictOptions("get an optimizer's state dict", options);
  const values = readState(optimizerTensors(model, optimizer), options);
  const steps = new Map([...model.namedParameters()].map(([name, parameter]) => [name, optimizer.stepsOf(parameter)]));
  const byName = Map.groupBy(values, ([{ fqn }]) => fqn);
  const isElsewhere = options.fullStateDict === true && options.cpuOffload === true && (options.group?.rank ?? 0) > 0;
  return {
    state: new Map([...byName].map(([fqn, states]): readonly [string, ParameterState] => {
      const tensors = new Map(states.map(([{ state }, tensor]) => [state, tensor]));
      return [fqn, { step: stepsOf(steps, fqn), tensors }];
    })),
    paramGroups: isElsewhere ? [] : groupsOf(model, optimizer),
    stepsTaken: optimizer.stepsTaken,
  };
}

/**
 * Overwrites the states of an optimizer. Every rank that holds the model must call it. Settings such as learning rates stay as
 * they are; what differs from those given is reported.
 *
 * @returns the missing and the unexpected names, as `<FQN>.<state>`: none unless `strict` is false. States that are missing stay
 *   as they are
 * @throws {CheckpointError} listing what is missing, unexpected or of another shape; nothing is written then
 * @throws {ArgumentError} if options do not go together, or the model is shared and no group is given
 * @example
 * ```ts ignore
 * const { missing } = setOptimizerStateDict(model, optimizer, state, { group: run.group, strict: false });
 * ```
 */
export function setOptimizerStateDict(
  model: NamedParts,
  optimizer: Optimizer,
  { state, paramGroups, stepsTaken }: OptimizerStateDict,
  options: StateDictOptions = {},
): OptimizerLoadReport {
  requireStateDictOptions("set an optimizer's state dict", options);
  requireGroup(model, options);
  const given = new Map([...state].flatMap(([fqn, { tensors }]) => {
    return [...tensors].map(([name, tensor]) => [`${fqn}.${name}`, tensor] as const);
  }));
  const change = { tensors: optimizerTensors(model, optimizer), given, what: "optimizer", open: () => undefined };
  const report = writeState(change, options);
  const own: CountedSteps = {
    stepsTaken,
    steps: [...state].map(([fqn, { step }]) => [fqn, step]),
    changes: compareGroups(paramGroups, groupsOf(model, optimizer)),
  };
  const { group, broadcastFromRank0 = false } = options;
  const counted: CountedSteps = broadcastFromRank0 && group !== undefined
    ? JSON.parse(at(group.exchangeText(JSON.stringify(own), "set the optimizer's steps"), 0, "steps of rank"))
    : own;
  const steps = new Map(counted.steps);
  for (const [name, parameter] of model.namedParameters()) {
    const step = steps.get(name);
    if (step !== undefined) optimizer.setSteps(parameter, step);
  }
  optimizer.stepsTaken = counted.stepsTaken;
  return { ...report, changes: counted.changes };
}

/** The parts of an optimizer's state dict that are not tensors. */
interface CountedSteps {
  readonly stepsTaken: number;
  readonly steps: readonly (readonly [fqn: string, step: number])[];
  readonly changes: readonly string[];
}

function stepsOf(steps: ReadonlyMap<string, number>, fqn: string): number {
  const count = steps.get(fqn);
  if (count === undefined) throw new CheckpointError("the optimizer", "There is no count of its steps", fqn);
  return count;
}
