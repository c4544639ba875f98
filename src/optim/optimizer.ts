/**
 * The base of all optimizers: parameter groups (`groups.ts`), states (`states.ts`), the records that an update reads (`records.ts`),
 * and the step, which updates the parameters of each flat shard by the rules that the optimizer has chosen (`rule.ts`). A rule sees the
 * elements that this rank keeps, and so is the same for sharded, replicated and plain parameters. A rule that needs unsharded matrices
 * gathers them on one rank (`matrix_owners.ts`).
 *
 * @module
 */
import { requireKnownKeys, requireOptions } from "../config/known_keys.ts";
import type { Device, DevicePtr } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { unwind } from "../unwind.ts";
import { AVERAGE, averageStates, AverageUpdates, exchangeAverages, requireAverage } from "./averages.ts";
import { gateOf } from "./clip.ts";
import { groupsOf, type OptimizerSettings, type ParamGroup, type ParamGroupOptions } from "./groups.ts";
import { type RecordTable, type UpdatedBucket, UpdateRecords } from "./records.ts";
import type { UpdateRule } from "./rule.ts";
import { requireReduced } from "./reduced.ts";
import { scheduleFactor } from "./schedule.ts";
import { UpdateRoom } from "./state_memory.ts";
import { OptimizerStates, type OptimizerStateView } from "./states.ts";
import { WorkMemory } from "./work_memory.ts";

/** The steps of the optimizer that stepped last, by device. */
const latestSteps = new WeakMap<Device, number>();

/** Steps taken by the optimizer that was the last to step on a device, for lines of a log; 0 where none has. */
export function stepsTakenOn(device: Device): number {
  return latestSteps.get(device) ?? 0;
}

/** Updates parameters from their gradients. */
export abstract class Optimizer<S extends OptimizerSettings = OptimizerSettings> {
  /** Number of calls of {@link step}, with the calls before the loaded checkpoint. Schedules count by it. */
  stepsTaken = 0;
  /** The groups; learning rates and decays may be changed between steps. */
  readonly groups: readonly ParamGroup<S>[];
  readonly #device: Device;
  readonly #parameters: readonly Parameter[];
  readonly #states: OptimizerStates<S>;
  readonly #records: UpdateRecords<S>;
  readonly #averages: AverageUpdates = new AverageUpdates();
  /** True from the first write of a step to its end. True between steps if a step failed in between: it updated some parameters only. */
  #isHalfUpdated = false;
  /** True while weights and averages are swapped. */
  #emaSwapped = false;

  /**
   * Allocates no states; the first step does.
   *
   * @param parameters all parameters, or groups of them; build the optimizer after sharding the model
   * @param defaults the settings that `options` and the groups leave out
   * @throws {ArgumentError} if there is no parameter, a parameter comes twice, or a setting is out of range or unknown
   */
  constructor(
    parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<S>>,
    defaults: S,
    options: Partial<S> = {},
  ) {
    requireOptions("optimize", options, Object.keys(defaults));
    this.groups = groupsOf(parameters, { ...defaults, ...options });
    this.#parameters = this.groups.flatMap((group) => group.parameters);
    const [first] = this.#parameters;
    if (first === undefined) throw new ArgumentError("Cannot optimize without parameters");
    for (const group of this.groups) {
      requireKnownKeys<ParamGroup<OptimizerSettings>>("optimize", group, {
        ...{ parameters: true, learningRate: true, schedule: true, weightDecay: true },
        ...{ emaDecay: true, emaStart: true },
        ...this.otherSettings(),
      });
      this.check(group);
      requireAverage(group);
    }
    this.#device = first.device;
    this.#states = new OptimizerStates(this.groups, {
      ruleOf: (parameter, group) => this.ruleOf(parameter, group),
      statesBeside: averageStates,
    });
    this.#records = new UpdateRecords(this.#device);
  }

  /** The learning rate of a group in the next step. @throws {ArgumentError} if its schedule gives no finite number */
  learningRateOf({ learningRate, schedule }: ParamGroup<S>): number {
    if (schedule === undefined) return learningRate;
    return learningRate * scheduleFactor(schedule, this.#device.math, this.stepsTaken + 1);
  }

  /**
   * Updates every parameter that has a gradient. If a rank met a fault, no parameter changes on any rank: see Note [Gate]. While a
   * device captures the update, records are written and the step is counted before each launch instead, see {@link HostWork.perLaunch}.
   *
   * @throws {ArgumentError} if nothing reduces some parameters while others are sharded, or an earlier step failed half-way
   * @throws {OutOfMemoryError} {@link FileError} if there is no room for states, or none for the work memory of an update: before
   * anything is updated, so that the call can be made again
   * @throws {FileError} if states in a file cannot be read or written: the optimizer takes no further step then
   */
  step(): void {
    this.#requireComplete("take an optimizer step");
    this.#requireWeights("take an optimizer step");
    requireReduced(this.#parameters, "take an optimizer step");
    this.#states.adopt();
    if (this.hasAverages) {
      this.#averages.adopt(this.#states.buckets);
      this.#device.traits.hostWork.perLaunch(() => this.#averages.begin(this.stepsTaken));
    }
    const gate = gateOf(this.#parameters);
    if (gate !== "closed") {
      // All memory is allocated before the first update, so that a step that runs out of memory changes nothing.
      const tables = this.#records.write(this.#states.buckets, gate, this);
      using room = new UpdateRoom(tables);
      using work = new WorkMemory();
      const updates = work.inTurn(
        tables.flatMap((table) => table.buckets.map((updated) => () => this.#prepare(table, updated, room, work))),
      );
      work.allocate();
      for (const update of updates) update();
      this.#isHalfUpdated = false;
    }
    this.#device.traits.hostWork.perLaunch(() => this.#count());
  }

  #count(): void {
    this.stepsTaken++;
    latestSteps.set(this.#device, this.stepsTaken);
  }

  /** Prepares the update of one bucket: plans the memory that it needs. The result updates. */
  #prepare(
    { device, gate }: RecordTable<S>,
    { bucket, records }: UpdatedBucket<S>,
    room: UpdateRoom,
    work: WorkMemory,
  ): () => void {
    const { flatShard, rule, members, length: numStates, states, steps } = bucket;
    const state = (name: string): DevicePtr => room.ptrOf(device, states, name);
    const prepare = (records: DevicePtr): () => void => {
      const { length: n, param, grad } = flatShard;
      const args = { n, numStates, numRecords: members.length, param, grad, records, steps: steps.ptr, gate };
      return rule.prepare({ device, bucket, args, state, learningRateOf: (group) => this.learningRateOf(group) }, work);
    };
    const update = records === undefined ? undefined : prepare(records);
    return () => {
      flatShard.beginWrite();
      try {
        room.begin(device, states);
        this.#isHalfUpdated = true;
        update?.();
        if (update !== undefined) bucket.isFresh = false;
        if (states.has(AVERAGE)) this.#averages.update(bucket, state(AVERAGE), gate);
        room.end(device, states);
      } finally {
        flatShard.endWrite();
      }
    };
  }

  /** Refuses an action while averages stand in place of the weights. */
  #requireWeights(action: string): void {
    if (!this.#emaSwapped) return;
    throw new ArgumentError(`Cannot ${action} inside of withAverages: averages stand where the weights were`);
  }

  /** Refuses an action if a failed step has updated only a part of the states. */
  #requireComplete(action: string): void {
    if (!this.#isHalfUpdated) return;
    throw new ArgumentError(
      `Cannot ${action}: the step before failed when some parameters were updated and others were not; build model and ` +
        "optimizer anew, and load the last checkpoint",
    );
  }

  /** Drops all gradients. */
  zeroGrad(): void {
    for (const parameter of this.#parameters) parameter.zeroGrad();
  }

  /**
   * Every state of every parameter that requires a gradient. Allocates missing states first, as zeros, and averages as copies of the
   * weights.
   *
   * @throws {ArgumentError} if a step failed half-way, or inside of {@link withAverages}
   */
  stateViews(): Generator<OptimizerStateView> {
    this.#requireComplete("save or load the states of an optimizer");
    this.#requireWeights("save or load the states of an optimizer");
    return this.#states.views();
  }

  /** True if a group keeps averages of its weights (`emaDecay`). */
  get hasAverages(): boolean {
    return this.groups.some(({ emaDecay }) => emaDecay !== undefined);
  }

  /**
   * Calls `body` while parameters have the averages of their weights as values, for an evaluation or an export; afterwards they have their
   * weights again, to the bit. Before the first step, averages are copies of the weights. Every rank must call it.
   *
   * @returns what `body` gives
   * @throws {ArgumentError} if no group keeps averages, or inside of another call
   * @throws {OutOfMemoryError} if there is no room to exchange them piece by piece, at most 1 MiB: nothing is exchanged then
   * @example
   * ```ts ignore
   * const { loss } = await optimizer.withAverages(() => evaluate(run, model, heldOut));
   * ```
   */
  async withAverages<T>(body: () => T | Promise<T>): Promise<T> {
    if (!this.hasAverages) throw new ArgumentError("Cannot use averages of weights: no group keeps any, set emaDecay");
    this.#requireComplete("use averages of weights");
    this.#requireWeights("use averages of weights");
    this.#states.adopt();
    const exchange = (): void => exchangeAverages(this.#states.buckets);
    exchange();
    this.#emaSwapped = true;
    let result: T;
    try {
      result = await body();
    } catch (error) {
      this.#emaSwapped = false;
      unwind([exchange]); // the first error counts
      throw error;
    }
    this.#emaSwapped = false;
    exchange();
    return result;
  }

  /** Steps taken by a parameter. Waits for the device. */
  stepsOf(parameter: Parameter): number {
    return this.#states.stepsOf(parameter);
  }

  /**
   * Sets the steps taken by a parameter: when a checkpoint is loaded.
   *
   * @throws {ArgumentError} if int32 does not hold them
   */
  setSteps(parameter: Parameter, steps: number): void {
    this.#states.setSteps(parameter, steps);
  }

  /** Bytes of all states on this rank. */
  get stateBytes(): number {
    return this.#states.byteLength;
  }

  /** Frees the states. */
  dispose(): void {
    this.#states.free();
    this.#averages.free();
    this.#records.free();
  }

  /**
   * Refuses settings that are out of range.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  protected abstract check(settings: S): void;
  /** Names of the settings besides those that all optimizers have. */
  protected abstract otherSettings(): Readonly<Record<Exclude<keyof S, keyof OptimizerSettings>, true>>;
  /** The rule that updates a parameter: the same object for parameters that may be updated together. */
  protected abstract ruleOf(parameter: Parameter, group: ParamGroup<S>): UpdateRule<S>;
}
