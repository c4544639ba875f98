/**
 * What an optimizer keeps of a flat shard: which parameters it updates in one kernel call, their states, and the steps that each
 * has taken.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { int32 } from "../dtype.ts";
import type { FlatShard, Parameter } from "../tensor/parameter.ts";
import type { OptimizerSettings, ParamGroup } from "./optimizer.ts";
import { StateMemory } from "./state_memory.ts";

/** A parameter with its group, and its first element in the states. */
export interface Member<S extends OptimizerSettings> {
  readonly parameter: Parameter;
  readonly group: ParamGroup<S>;
  readonly state: number;
}

/** Parameters of one flat shard that were first trained together; one kernel call updates them. */
export interface ParameterBlock<S extends OptimizerSettings> {
  readonly flatShard: FlatShard;
  readonly members: readonly Member<S>[];
  /** Elements of each state: the members' one after another. */
  readonly length: number;
  /** The states of all members by name. */
  readonly states: ReadonlyMap<string, StateMemory>;
  /** int32 steps taken, by member: one without a gradient is not stepped. */
  readonly steps: Buffer;
}

/**
 * Allocates the states of parameters. Where memory runs out, it keeps none.
 *
 * @param names PyTorch's names of the states
 * @param stepsOf steps that a parameter has taken
 */
export function openBlock<S extends OptimizerSettings>(
  flatShard: FlatShard,
  members: readonly Member<S>[],
  names: readonly string[],
  stepsOf: (parameter: Parameter) => number,
): ParameterBlock<S> {
  const { device } = flatShard;
  const length = members.reduce((_, member) => endOf(member), 0);
  const states = new Map<string, StateMemory>();
  using opened = new DisposableStack();
  for (const name of names) {
    const state = new StateMemory(device, flatShard.statePool, length, `optimizer ${name}`);
    opened.defer(() => state.release());
    states.set(name, state);
  }
  const steps = Buffer.allocate(device, members.length * int32.byteLength, "optimizer steps", "optimizer");
  opened.move();
  const given = Int32Array.from(members, ({ parameter }) => stepsOf(parameter));
  device.copyIn(steps.ptr, new Uint8Array(given.buffer));
  return { flatShard, members, length, states, steps };
}

/** Frees the states of a block. */
export function freeBlock<S extends OptimizerSettings>({ states, steps }: ParameterBlock<S>): void {
  for (const buffer of [...states.values(), steps]) buffer.release();
}

/** Whether a step updates a parameter: it is trained and has a gradient. */
export function isActive({ parameter }: { readonly parameter: Parameter }): boolean {
  return parameter.requiresGrad && parameter.grad !== undefined;
}

/** The end of a member's elements in the states. */
export function endOf({ parameter, state }: { readonly parameter: Parameter; readonly state: number }): number {
  return state + parameter.storage.shard.numel;
}
