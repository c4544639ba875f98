/**
 * States of an optimizer: flat float32 arrays, with an element for each element of a parameter that requires a gradient and that this
 * rank keeps, and the steps that each parameter has taken. Parameters of a flat shard that were first trained together are a block,
 * which one kernel call updates.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import type { MemoryPlace } from "../device/offload.ts";
import { float32, int32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { requireHeld } from "../held.ts";
import type { FlatShard, Parameter } from "../tensor/parameter.ts";
import type { OptimizerSettings, ParamGroup } from "./groups.ts";
import { StateMemory } from "./state_memory.ts";

/** One state of one parameter: this rank's elements of it. */
export interface OptimizerStateView {
  /** The parameter that it belongs to. */
  readonly parameter: Parameter;
  /** PyTorch's name of the state, e.g. `exp_avg`. */
  readonly name: string;
  /** The device or pool that its memory belongs to. */
  readonly device: MemoryPlace["device"];
  /** Address of the first of `parameter.storage.shard.numel` float32 elements, until the optimizer is disposed. */
  readonly ptr: () => DevicePtr;
}

/** A parameter with its group, and its first element in the states. */
export interface BlockMember<S extends OptimizerSettings> {
  readonly parameter: Parameter;
  readonly group: ParamGroup<S>;
  readonly state: number;
}

/** Parameters of one flat shard that were first trained together; one kernel call updates them. */
export interface ParameterBlock<S extends OptimizerSettings> {
  readonly flatShard: FlatShard;
  readonly members: readonly BlockMember<S>[];
  /** Elements of each state: those of all members, in their order. */
  readonly length: number;
  /** The states of all members by name. */
  readonly states: ReadonlyMap<string, StateMemory>;
  /** int32 steps taken, by member: a member without a gradient is not stepped. */
  readonly steps: Buffer;
}

/** The states of all parameters that were trained. */
export class OptimizerStates<S extends OptimizerSettings> {
  readonly #groups: readonly ParamGroup<S>[];
  readonly #names: () => readonly string[];
  readonly #blocks: ParameterBlock<S>[] = [];
  readonly #places = new Map<Parameter, { readonly block: ParameterBlock<S>; readonly index: number }>();
  /** Steps, from a checkpoint, of parameters that no block holds yet. */
  readonly #given = new Map<Parameter, number>();

  /**
   * Allocates nothing; {@link adopt} does.
   *
   * @param names gives PyTorch's names of the states that new parameters get
   */
  constructor(groups: readonly ParamGroup<S>[], names: () => readonly string[]) {
    this.#groups = groups;
    this.#names = names;
  }

  /** The blocks, in the order of their first training. */
  get blocks(): readonly ParameterBlock<S>[] {
    return this.#blocks;
  }

  /** Allocates states of parameters that have none and require a gradient; some may have been frozen before. */
  adopt(): void {
    const fresh = new Map<FlatShard, BlockMember<S>[]>();
    for (const group of this.#groups) {
      for (const parameter of group.parameters) {
        const { requiresGrad, storage: { flatShard } } = parameter;
        const held = this.#places.get(parameter)?.block.flatShard;
        if (held !== undefined && held !== flatShard) {
          throw new ArgumentError(
            `Cannot update '${parameter.fqn}' as it was sharded after its first step: build the optimizer after sharding`,
          );
        }
        if (!requiresGrad || held !== undefined) continue;
        const members = fresh.get(flatShard) ?? [];
        const last = members.at(-1);
        members.push({ parameter, group, state: last === undefined ? 0 : endOf(last) });
        fresh.set(flatShard, members);
      }
    }
    using opened = new DisposableStack();
    const blocks = Array.from(fresh, ([flatShard, members]) => {
      const block = this.#newBlock(flatShard, members);
      opened.defer(() => freeBlock(block));
      return block;
    });
    opened.move();
    for (const block of blocks) {
      this.#blocks.push(block);
      for (const [index, { parameter }] of block.members.entries()) this.#places.set(parameter, { block, index });
    }
  }

  /** Every state of every parameter that requires a gradient. States that were not allocated yet are, with zeros. */
  *views(): Generator<OptimizerStateView> {
    this.adopt();
    for (const { members, states } of this.#blocks) {
      for (const { parameter, state } of members) {
        if (!parameter.requiresGrad) continue;
        for (const [name, memory] of states) {
          yield { parameter, name, device: memory.holder, ptr: () => memory.placeOf(state).ptr };
        }
      }
    }
  }

  /** Steps taken by a parameter. Waits for the device. */
  stepsOf(parameter: Parameter): number {
    const ptr = this.#stepsPtr(parameter);
    if (ptr === undefined) return this.#given.get(parameter) ?? 0;
    const word = new Uint8Array(int32.byteLength);
    const { device } = parameter.storage.flatShard;
    device.synchronize();
    device.copyOut(word, ptr);
    return new DataView(word.buffer).getInt32(0, true);
  }

  /**
   * Sets the steps taken by a parameter.
   *
   * @throws {ArgumentError} if int32 does not hold them
   */
  setSteps(parameter: Parameter, steps: number): void {
    requireHeld(int32, steps, `set the steps of '${parameter.fqn}'`);
    const ptr = this.#stepsPtr(parameter);
    if (ptr === undefined) this.#given.set(parameter, steps);
    else parameter.storage.flatShard.device.copyIn(ptr, new Uint8Array(Int32Array.of(steps).buffer));
  }

  /** Bytes of all states on this rank. States that were not allocated yet are. */
  get byteLength(): number {
    this.adopt();
    return this.#blocks.reduce((sum, { states, length }) => sum + states.size * length * float32.byteLength, 0);
  }

  /** Frees all states. */
  free(): void {
    for (const block of this.#blocks) freeBlock(block);
    this.#blocks.length = 0;
    this.#places.clear();
  }

  /** Allocates the states of parameters. Where memory runs out, it keeps none. */
  #newBlock(flatShard: FlatShard, members: readonly BlockMember<S>[]): ParameterBlock<S> {
    const { device } = flatShard;
    const length = members.reduce((_, member) => endOf(member), 0);
    const states = new Map<string, StateMemory>();
    using opened = new DisposableStack();
    for (const name of this.#names()) {
      const state = new StateMemory(device, flatShard.statePool, length, `optimizer ${name}`);
      opened.defer(() => state.release());
      states.set(name, state);
    }
    const steps = Buffer.allocate(device, members.length * int32.byteLength, "optimizer steps", "optimizer");
    opened.move();
    const given = Int32Array.from(members, ({ parameter }) => this.#given.get(parameter) ?? 0);
    device.copyIn(steps.ptr, new Uint8Array(given.buffer));
    return { flatShard, members, length, states, steps };
  }

  #stepsPtr(parameter: Parameter): DevicePtr | undefined {
    const place = this.#places.get(parameter);
    return place === undefined ? undefined : devicePtr(place.block.steps.ptr + place.index * int32.byteLength);
  }
}

/** The end of a member's elements in the states. */
function endOf({ parameter, state }: { readonly parameter: Parameter; readonly state: number }): number {
  return state + parameter.storage.shard.numel;
}

function freeBlock<S extends OptimizerSettings>({ states, steps }: ParameterBlock<S>): void {
  for (const buffer of [...states.values(), steps]) buffer.release();
}
