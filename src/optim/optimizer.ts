/**
 * What optimizers share: parameter groups with settings of their own, states as flat float32 arrays of just the elements that
 * are trained, and the table of records by which one kernel call updates a flat shard. Only this rank's elements are seen here; that
 * is all that sharding changes.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross, type MemoryPlace } from "../device/offload.ts";
import { CONSTANTS } from "../device/kernels/signature.ts";
import { requireKnownKeys } from "../config/known_keys.ts";
import type { ArgsOf, Kernels } from "../device/kernels/table.ts";
import { float32, int32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { requireHeld } from "../held.ts";
import { type FlatShard, Parameter } from "../tensor/parameter.ts";
import { endOf, freeBlock, isActive, type Member, openBlock, type ParameterBlock } from "./block.ts";
import { gateOf } from "./clip.ts";
import { requireReduced } from "./reduced.ts";
import { writeRecord } from "./record.ts";
import { UpdateRoom } from "./state_memory.ts";
import { type Schedule, scheduleFactor, type ScheduleFunction } from "./schedule.ts";

/** What all optimizers can set. */
export interface OptimizerSettings {
  /** The rate, or what the schedule scales. */
  learningRate: number;
  /** A factor on the learning rate by step: one that is there, or a function of the step. @default always 1 */
  readonly schedule?: Schedule | ScheduleFunction | undefined;
  /** How strongly weights are drawn to zero. */
  weightDecay: number;
}

/** Parameters with settings of their own, which are plain data. */
export type ParamGroup<S extends OptimizerSettings = OptimizerSettings> = S & {
  readonly parameters: readonly Parameter[];
};

/** Parameters with some settings of their own; the others come from the optimizer's options. */
export type ParamGroupOptions<S extends OptimizerSettings = OptimizerSettings> = Partial<S> & {
  readonly parameters: Iterable<Parameter>;
};

/** One state of one parameter: this rank's elements of it. */
export interface OptimizerStateView {
  /** The parameter that it belongs to. */
  readonly parameter: Parameter;
  /** PyTorch's name of the state, e.g. `exp_avg`. */
  readonly name: string;
  /** What its memory belongs to. */
  readonly device: MemoryPlace["device"];
  /** Address of the first of `parameter.storage.shard.numel` float32 elements, until the optimizer is disposed. */
  readonly ptr: () => DevicePtr;
}

/** What the update of a flat shard takes, besides states. */
export type UpdateArgs = Omit<ArgsOf<"adamw">, "expAvg" | "expAvgSq">;

const { RECORD_BYTES } = CONSTANTS;

/** The steps of the optimizer that stepped last, by device. */
const latestSteps = new WeakMap<Device, number>();

/** Steps that the optimizer has taken which stepped last on a device, for lines of a log; 0 where none has. */
export function stepsTakenOn(device: Device): number {
  return latestSteps.get(device) ?? 0;
}

/** Updates parameters from their gradients. */
export abstract class Optimizer<S extends OptimizerSettings = OptimizerSettings> {
  /** Calls of {@link step}, those of the run that was loaded included: what schedules go by. */
  stepsTaken = 0;
  /** The groups; learning rates and decays may be changed between steps. */
  readonly groups: readonly ParamGroup<S>[];
  readonly #device: Device;
  readonly #parameters: readonly Parameter[];
  readonly #blocks: ParameterBlock<S>[] = [];
  readonly #places = new Map<Parameter, { readonly block: ParameterBlock<S>; readonly index: number }>();
  /** Steps of parameters that no block holds yet. */
  readonly #given = new Map<Parameter, number>();
  /** Room for the records of the blocks on a device, and for its copy of the gate. */
  readonly #records = new Map<Device, Buffer>();
  /** By device, where the records of a captured update lie, and which of them are updated. */
  readonly #captured = new Map<Device, CapturedRecords<S>>();
  /** Whether a step has updated some flat shards and not the others. */
  #isPartial = false;

  /**
   * Makes no states yet: they come with the first step.
   *
   * @param parameters all parameters, or groups of them; build the optimizer after sharding the model
   * @throws {ArgumentError} if there is none, one comes twice, or a setting is out of range or unknown
   */
  constructor(parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<S>>, defaults: S) {
    const plain: Parameter[] = [];
    const groups: ParamGroup<S>[] = [];
    for (const item of parameters) {
      if (item instanceof Parameter) plain.push(item);
      else groups.push({ ...defaults, ...item, parameters: [...item.parameters] });
    }
    if (plain.length > 0) groups.push({ ...defaults, parameters: plain });
    this.groups = groups;
    this.#parameters = groups.flatMap((group) => group.parameters);
    const [first] = this.#parameters;
    if (first === undefined) throw new ArgumentError("Cannot optimize without parameters");
    this.#device = first.device;
    const seen = new Set<Parameter>();
    for (const parameter of this.#parameters) {
      if (seen.has(parameter)) throw new ArgumentError(`Parameter '${parameter.fqn}' is given to the optimizer twice`);
      seen.add(parameter);
    }
    for (const group of groups) {
      requireKnownKeys<ParamGroup<OptimizerSettings>>("optimize", group, {
        ...{ parameters: true, learningRate: true, schedule: true, weightDecay: true },
        ...this.otherSettings(),
      });
      this.check(group);
    }
  }

  /** The learning rate of a group in the next step. @throws {ArgumentError} if its schedule gives no finite number */
  learningRateOf({ learningRate, schedule }: ParamGroup<S>): number {
    if (schedule === undefined) return learningRate;
    return learningRate * scheduleFactor(schedule, this.#device.math, this.stepsTaken + 1);
  }

  /**
   * Updates every parameter that has a gradient, unless a fault keeps all from it; see Note [Gate]. Where a device captures the update
   * it counts for nothing yet: {@link replayStep} goes before each launch.
   *
   * @throws {ArgumentError} if nothing reduces some parameters while others are sharded, or an earlier step failed half-way
   * @throws {OutOfMemoryError} {@link FileError} if there is no room for states: before anything is updated, so that the call can be
   * made again
   * @throws {FileError} if states in a file cannot be read or written: the optimizer takes no further step then
   */
  step(): void {
    this.#requireWhole("take an optimizer step");
    requireReduced(this.#parameters, "take an optimizer step");
    this.#adopt();
    const gate = gateOf(this.#parameters);
    if (gate !== "closed") {
      using rooms = new DisposableStack();
      // All memory is taken before the first update, so that a step that runs out of memory changes nothing.
      const parts = Array.from(Map.groupBy(this.#blocks, ({ flatShard }) => flatShard.device), ([device, blocks]) => {
        const active = blocks.filter(({ members }) => members.some(isActive));
        const room = rooms.use(new UpdateRoom(device, active));
        return { device, blocks, room, table: this.#writeTable(device, blocks, gate) };
      });
      for (const { device, blocks, table, room } of parts) this.#update(device, blocks, table, room);
      this.#isPartial = false;
    }
    if (this.#device.graphs?.isCapturing !== true) this.#count();
  }

  /**
   * Gives the device what a captured {@link step} reads of the host: rates and decays as they are now, of the parameters that had a
   * gradient then. Counts the step.
   */
  replayStep(): void {
    for (const [device, { ptr, members, active }] of this.#captured) {
      device.copyIn(ptr, this.#tableOf(members, active, 0));
    }
    this.#count();
  }

  #count(): void {
    this.stepsTaken++;
    latestSteps.set(this.#device, this.stepsTaken);
  }

  /** Whether what a captured {@link step} reads and writes is still there: not after {@link dispose}. */
  get isCaptured(): boolean {
    return this.#captured.size > 0;
  }

  /** Updates the flat shards on one device. */
  #update(device: Device, blocks: readonly ParameterBlock<S>[], table: RecordTable, room: UpdateRoom): void {
    let { next } = table;
    for (const { flatShard, members, length: numStates, states, steps } of blocks) {
      const records = next;
      next = devicePtr(records + members.length * RECORD_BYTES);
      if (!members.some(isActive)) continue;
      flatShard.beginWrite();
      try {
        const present = room.begin(states);
        this.#isPartial = true;
        const arrays = { n: flatShard.length, numStates, param: flatShard.param, grad: flatShard.grad };
        const others = { numRecords: members.length, records, steps: steps.ptr, gate: table.gate };
        this.update(device.kernels, { ...arrays, ...others }, present);
        room.end(states);
      } finally {
        flatShard.endWrite();
      }
    }
  }

  /** Refuses states of which a failed step has written a part. */
  #requireWhole(what: string): void {
    if (!this.#isPartial) return;
    throw new ArgumentError(
      `Cannot ${what}: the step before failed when some parameters were updated and others were not; build model and ` +
        "optimizer anew, and load the last checkpoint",
    );
  }

  /** Drops all gradients. */
  zeroGrad(): void {
    for (const parameter of this.#parameters) parameter.zeroGrad();
  }

  /**
   * Every state of every trained parameter, allocated (zero) if it is not yet.
   *
   * @throws {ArgumentError} if a step failed half-way
   */
  *stateViews(): Generator<OptimizerStateView> {
    this.#requireWhole("save or load the states of an optimizer");
    this.#adopt();
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
   * Sets the steps taken by a parameter: when a checkpoint is loaded.
   *
   * @throws {ArgumentError} if int32 does not hold them
   */
  setSteps(parameter: Parameter, steps: number): void {
    requireHeld(int32, steps, `set the steps of '${parameter.fqn}'`);
    const ptr = this.#stepsPtr(parameter);
    if (ptr === undefined) this.#given.set(parameter, steps);
    else parameter.storage.flatShard.device.copyIn(ptr, new Uint8Array(Int32Array.of(steps).buffer));
  }

  /** Bytes of all states on this rank. */
  get stateBytes(): number {
    this.#adopt();
    return this.#blocks.reduce((sum, { states, length }) => sum + states.size * length * float32.byteLength, 0);
  }

  /** Frees the states. */
  dispose(): void {
    for (const block of this.#blocks) freeBlock(block);
    for (const buffer of this.#records.values()) buffer.release();
    this.#records.clear();
    this.#captured.clear();
    this.#blocks.length = 0;
    this.#places.clear();
  }

  /**
   * Refuses settings that make no sense.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  protected abstract check(settings: S): void;
  /** Names of the settings besides those that all optimizers have. */
  protected abstract otherSettings(): Readonly<Record<Exclude<keyof S, keyof OptimizerSettings>, true>>;
  /** PyTorch's names of the states that there are. */
  protected abstract stateNames(): readonly string[];
  /** The last three numbers of a record; see `wasm/src/optimizer.rs`. */
  protected abstract record(settings: S): readonly [number, number, number];
  /** One kernel call; `state` gives the address of a state. */
  protected abstract update(kernels: Kernels, args: UpdateArgs, state: (name: string) => DevicePtr): void;

  /** Gives states to parameters that are trained for the first time: some may have been frozen before. */
  #adopt(): void {
    const fresh = new Map<FlatShard, Member<S>[]>();
    for (const group of this.groups) {
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
      const block = openBlock(flatShard, members, this.stateNames(), (parameter) => this.#given.get(parameter) ?? 0);
      opened.defer(() => freeBlock(block));
      return block;
    });
    opened.move();
    for (const block of blocks) {
      this.#blocks.push(block);
      for (const [index, { parameter }] of block.members.entries()) this.#places.set(parameter, { block, index });
    }
  }

  #stepsPtr(parameter: Parameter): DevicePtr | undefined {
    const place = this.#places.get(parameter);
    return place === undefined ? undefined : devicePtr(place.block.steps.ptr + place.index * int32.byteLength);
  }

  /** Writes the records of a device's blocks: what varies from step to step reaches it in one copy; the gate, where it lies elsewhere. */
  #writeTable(
    device: Device,
    blocks: readonly ParameterBlock<S>[],
    gate: DevicePtr | undefined,
  ): RecordTable {
    const members = blocks.flatMap((block) => block.members);
    const active = members.map(isActive);
    const end = members.length * RECORD_BYTES;
    const table = this.#tableOf(members, active, device === this.#device ? 0 : int32.byteLength);
    let records = this.#records.get(device);
    if (records?.byteLength !== table.byteLength) {
      // Where the allocation fails, the next step must not find the released buffer here.
      this.#records.delete(device);
      records?.release();
      records = Buffer.allocate(device, table.byteLength, "optimizer records", "optimizer");
      this.#records.set(device, records);
    }
    const { ptr: next } = records;
    if (device.graphs?.isCapturing === true) this.#captured.set(device, { ptr: next, members, active });
    else device.copyIn(next, table);
    if (gate === undefined || device === this.#device) return { next, gate };
    const copy = devicePtr(next + end);
    copyAcross({ device, ptr: copy }, { device: this.#device, ptr: gate }, int32.byteLength);
    return { next, gate: copy };
  }

  /** The records of some parameters, as the kernels of updates read them, with bytes behind them. */
  #tableOf(members: readonly Member<S>[], active: readonly boolean[], behind: number): Uint8Array<ArrayBuffer> {
    const table = new DataView(new ArrayBuffer(members.length * RECORD_BYTES + behind));
    for (const [i, { parameter, group, state }] of members.entries()) {
      const { runOffset, shard } = parameter.storage;
      const settings = [this.learningRateOf(group), group.weightDecay, ...this.record(group)];
      const [begin, end] = [runOffset, runOffset + shard.numel];
      writeRecord(table, i, { begin, end, state, isActive: active[i] === true, settings });
    }
    return new Uint8Array(table.buffer);
  }
}

/** The records of a device's blocks, in its memory. */
interface RecordTable {
  /** The first record of the first block. */
  readonly next: DevicePtr;
  /** The word that keeps the update back, where there is one. */
  readonly gate: DevicePtr | undefined;
}

/** Records of a captured update. */
interface CapturedRecords<S extends OptimizerSettings> {
  readonly ptr: DevicePtr;
  readonly members: readonly Member<S>[];
  readonly active: readonly boolean[];
}
