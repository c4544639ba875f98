/**
 * States of an optimizer, in flat arrays. Most have one float32 element for each element that this rank keeps of a parameter that
 * requires a gradient. The number of steps is kept for each parameter.
 *
 * A {@link StateBucket} is a set of parameters whose states lie side by side: they are in one flat shard, were first trained in the same
 * step, and are updated by the same rule.
 *
 * @module
 */
import { at } from "../at.ts";
import { Buffer } from "../device/buffer.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross, type MemoryPlace } from "../device/offload.ts";
import { type DType, float32, int32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { requireHeld } from "../held.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { isKeptHere } from "../tensor/owners.ts";
import type { FlatShard } from "../tensor/parameter_storage.ts";
import type { ShardLayout } from "../tensor/shard_layout.ts";
import type { OptimizerSettings, ParamGroup } from "./groups.ts";
import type { RuleChoice, StateSpec, UpdateRule } from "./rule.ts";
import { StateMemory } from "./state_memory.ts";

/** One state of one parameter: this rank's elements of it. */
export interface OptimizerStateView {
  /** The parameter that it belongs to. */
  readonly parameter: Parameter;
  /** PyTorch's name of the state, e.g. `exp_avg`. */
  readonly name: string;
  /** dtype of its elements in memory. */
  readonly dtype: DType;
  /** The elements of the state that this rank keeps. */
  readonly shard: ShardLayout;
  /** The device or pool that its memory belongs to. */
  readonly device: MemoryPlace["device"];
  /** Address of the first of `shard.numel` elements, until the optimizer is disposed. */
  readonly ptr: () => DevicePtr;
}

/** A parameter with its group, and its first element in states that have an element for each of its elements. */
export interface BucketMember<S extends OptimizerSettings> {
  /** The parameter. */
  readonly parameter: Parameter;
  /** Its group. */
  readonly group: ParamGroup<S>;
  /** Its first element in the states. */
  readonly offset: number;
}

/** One state of all members of a bucket. */
export interface BucketState {
  /** Its name and layout. */
  readonly spec: StateSpec;
  /** The elements of all members. */
  readonly memory: StateMemory;
  /** The elements that this rank keeps, and the place of the first in the memory, by member. */
  readonly parts: readonly { readonly shard: ShardLayout; readonly begin: number }[];
}

/** Parameters of one flat shard that were first trained together and that one rule updates. */
export interface StateBucket<S extends OptimizerSettings> {
  /** The flat shard. */
  readonly flatShard: FlatShard;
  /** The rule. */
  readonly rule: UpdateRule<S>;
  /** The parameters. */
  readonly members: readonly BucketMember<S>[];
  /** Elements that this rank keeps of all members, in their order. */
  readonly length: number;
  /** The states of all members by name. */
  readonly states: ReadonlyMap<string, BucketState>;
  /** int32 steps taken, by member: a member without a gradient is not stepped. */
  readonly steps: Buffer;
  /** States may have been written from outside since the last update. */
  isFresh: boolean;
}

/** Parameters of one flat shard that have no states yet and that one rule will update. */
interface NewBucket<S extends OptimizerSettings> {
  readonly flatShard: FlatShard;
  readonly rule: UpdateRule<S>;
  readonly members: BucketMember<S>[];
}

/** The states of all parameters that were trained. */
export class OptimizerStates<S extends OptimizerSettings> {
  readonly #groups: readonly ParamGroup<S>[];
  readonly #choice: RuleChoice<S>;
  readonly #buckets: StateBucket<S>[] = [];
  readonly #places = new Map<Parameter, { readonly bucket: StateBucket<S>; readonly index: number }>();
  /** Numbers of steps from a checkpoint, for parameters that no bucket holds yet. */
  readonly #given = new Map<Parameter, number>();

  /**
   * Allocates nothing; {@link adopt} does.
   *
   * @param choice says what each parameter is updated by, and which states it has
   */
  constructor(groups: readonly ParamGroup<S>[], choice: RuleChoice<S>) {
    this.#groups = groups;
    this.#choice = choice;
  }

  /** The buckets, in the order of their first training. */
  get buckets(): readonly StateBucket<S>[] {
    return this.#buckets;
  }

  /**
   * Allocates the states of parameters that require a gradient and have none yet, as zeros: in the first step all, later those that
   * were frozen before. {@link free} frees them.
   */
  adopt(): void {
    const fresh = this.#withoutStates();
    if (fresh.length === 0) return;
    const shards = new Map<FlatShard, Map<string, NewBucket<S>>>();
    const ids = new Map<UpdateRule<S>, number>();
    for (const { parameter, group } of fresh) {
      const { flatShard } = parameter.storage;
      const rule = this.#choice.ruleOf(parameter, group);
      if (!ids.has(rule)) ids.set(rule, ids.size);
      const key = [ids.get(rule), ...this.#choice.statesBeside(group).map(({ name }) => name)].join();
      const buckets = shards.get(flatShard) ?? new Map<string, NewBucket<S>>();
      const members: BucketMember<S>[] = buckets.get(key)?.members ?? [];
      const last = members.at(-1);
      members.push({ parameter, group, offset: last === undefined ? 0 : endOf(last) });
      buckets.set(key, { flatShard, rule, members });
      shards.set(flatShard, buckets);
    }
    using opened = new DisposableStack();
    const buckets = [...shards.values()].flatMap((buckets) => [...buckets.values()]).map((fresh) => {
      const bucket = this.#openBucket(fresh);
      opened.defer(() => freeBucket(bucket));
      return bucket;
    });
    opened.move();
    for (const bucket of buckets) {
      this.#buckets.push(bucket);
      for (const [index, { parameter }] of bucket.members.entries()) this.#places.set(parameter, { bucket, index });
    }
  }

  /** The parameters that require a gradient and that no bucket holds, with their groups. */
  #withoutStates(): readonly { readonly parameter: Parameter; readonly group: ParamGroup<S> }[] {
    const found: { readonly parameter: Parameter; readonly group: ParamGroup<S> }[] = [];
    for (const group of this.#groups) {
      for (const parameter of group.parameters) {
        const held = this.#places.get(parameter)?.bucket.flatShard;
        if (held === undefined) {
          if (parameter.requiresGrad) found.push({ parameter, group });
        } else if (held !== parameter.storage.flatShard) {
          throw new ArgumentError(
            `Cannot update '${parameter.fqn}' as it was sharded after its first step: build the optimizer after sharding`,
          );
        }
      }
    }
    return found;
  }

  /** Every state of every parameter that requires a gradient. Allocates missing states first, as zeros. */
  *views(): Generator<OptimizerStateView> {
    this.adopt();
    for (const bucket of this.#buckets) bucket.isFresh = true;
    // In the order of the groups, which all ranks share: buckets differ between stages of a pipeline.
    for (const parameter of this.#groups.flatMap(({ parameters }) => parameters)) {
      const place = this.#places.get(parameter);
      if (place === undefined || !parameter.requiresGrad) continue;
      for (const [name, { memory, parts }] of place.bucket.states) {
        const { shard, begin } = at(parts, place.index, "part of a state");
        const ptr = (): DevicePtr => memory.placeOf(begin).ptr;
        yield { parameter, name, dtype: memory.dtype, shard, device: memory.holder, ptr };
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

  /** Bytes of all states on this rank. Allocates missing states first. */
  get byteLength(): number {
    this.adopt();
    const bytesOf = ({ states }: StateBucket<S>): number =>
      [...states.values()].reduce((sum, { memory }) => sum + memory.byteLength, 0);
    return this.#buckets.reduce((sum, bucket) => sum + bytesOf(bucket), 0);
  }

  /** Frees all states: called by `Optimizer.dispose`. */
  free(): void {
    for (const bucket of this.#buckets) freeBucket(bucket);
    this.#buckets.length = 0;
    this.#places.clear();
  }

  /** Allocates the states of parameters. Where memory runs out, it keeps none. */
  #openBucket({ flatShard, rule, members }: NewBucket<S>): StateBucket<S> {
    const { device } = flatShard;
    const length = members.reduce((_, member) => endOf(member), 0);
    const states = new Map<string, BucketState>();
    using opened = new DisposableStack();
    const parameters = members.map(({ parameter }) => parameter);
    const [first] = members;
    for (const spec of [...rule.states, ...first === undefined ? [] : this.#choice.statesBeside(first.group)]) {
      let end = 0;
      const parts = parameters.map((parameter) => {
        const whole = spec.layout?.(parameter, parameters) ?? parameter.storage.shard;
        const shard = isKeptHere(parameter.owners) ? whole : { ...whole, boxes: [], numel: 0 };
        const begin = end + (spec.leadingPad?.(parameter) ?? 0);
        end = begin + shard.numel;
        return { shard, begin };
      });
      const memory = new StateMemory(device, flatShard.statePool, end, `optimizer ${spec.name}`, spec.dtype);
      opened.defer(() => memory.release());
      if (spec.initial === "parameter") copyValues(memory, flatShard, members);
      states.set(spec.name, { spec, memory, parts });
    }
    const steps = Buffer.allocate(device, members.length * int32.byteLength, "optimizer steps", "optimizer");
    opened.move();
    const given = Int32Array.from(members, ({ parameter }) => this.#given.get(parameter) ?? 0);
    device.copyIn(steps.ptr, new Uint8Array(given.buffer));
    return { flatShard, rule, members, length, states, steps, isFresh: true };
  }

  #stepsPtr(parameter: Parameter): DevicePtr | undefined {
    const place = this.#places.get(parameter);
    return place === undefined ? undefined : devicePtr(place.bucket.steps.ptr + place.index * int32.byteLength);
  }
}

/** The end of a member's elements in the states. */
function endOf({ parameter, offset }: { readonly parameter: Parameter; readonly offset: number }): number {
  return offset + parameter.storage.shard.numel;
}

function freeBucket<S extends OptimizerSettings>({ states, steps }: StateBucket<S>): void {
  for (const { memory } of states.values()) memory.release();
  steps.release();
}

/** Writes the values of the members to a state. */
function copyValues<S extends OptimizerSettings>(
  memory: StateMemory,
  { device, param }: FlatShard,
  members: readonly BucketMember<S>[],
): void {
  for (const { parameter, offset: first } of members) {
    parameter.requireValues();
    const { offset, numel } = parameter.storage.shard;
    const ptr = devicePtr(param + offset * float32.byteLength);
    copyAcross(memory.placeOf(first), { device, ptr }, numel * float32.byteLength);
  }
}
