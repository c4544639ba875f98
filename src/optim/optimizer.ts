/**
 * What optimizers share: parameter groups, and states as flat float32 runs that lie like the parameters they belong to, so
 * that one kernel call updates a run. Only this rank's elements are seen here; that is all that sharding changes.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { Parameter, type ParameterRun } from "../tensor/parameter.ts";

/** Parameters with hyper-parameters of their own. */
export interface ParamGroup {
  readonly parameters: readonly Parameter[];
  /** The group's own; a schedule overwrites it before each step. */
  learningRate: number;
  weightDecay: number;
}

/** Parameters with some hyper-parameters of their own; the others come from the optimizer's options. */
export interface ParamGroupOptions {
  readonly parameters: Iterable<Parameter>;
  readonly learningRate?: number;
  readonly weightDecay?: number;
}

/** One state of one parameter: this rank's elements of it. */
export interface OptimizerStateView {
  readonly parameter: Parameter;
  /** PyTorch's name of the state, e.g. `exp_avg`. */
  readonly name: string;
  /** Address of the first of `parameter.storage.shard.numel` float32 elements. */
  readonly ptr: DevicePtr;
}

/** What an optimizer keeps for one run. */
export interface RunState {
  readonly run: ParameterRun;
  readonly parameters: readonly { readonly parameter: Parameter; readonly group: ParamGroup }[];
  /** One flat array a state name, each as long as the run. */
  readonly states: readonly Buffer[];
  /** Room for the range table. */
  readonly ranges: Buffer;
}

/** Bytes of one record of a range table. */
const RANGE_BYTES = 16;

/** Updates parameters from their gradients. */
export abstract class Optimizer {
  /** The groups; learning rates may be changed between steps. */
  readonly groups: readonly ParamGroup[];
  readonly #stateNames: readonly string[];
  readonly #runs = new Map<ParameterRun, RunState>();
  /** Steps taken, by parameter: one without a gradient is not stepped. */
  readonly #steps = new Map<Parameter, number>();

  /**
   * @param parameters all parameters, or groups of them; build the optimizer after sharding the model
   * @throws {ArgumentError} if there is none, or one comes twice
   */
  constructor(
    parameters: Iterable<Parameter> | readonly ParamGroupOptions[],
    stateNames: readonly string[],
    defaults: { readonly learningRate: number; readonly weightDecay: number },
  ) {
    const plain: Parameter[] = [];
    const groups: ParamGroup[] = [];
    for (const item of parameters) {
      if (item instanceof Parameter) {
        plain.push(item);
      } else {
        const { learningRate = defaults.learningRate, weightDecay = defaults.weightDecay } = item;
        groups.push({ parameters: [...item.parameters], learningRate, weightDecay });
      }
    }
    if (plain.length > 0) groups.push({ parameters: plain, ...defaults });
    const all = groups.flatMap((group) => group.parameters);
    if (all.length === 0) throw new ArgumentError("Cannot optimize without parameters");
    const seen = new Set<Parameter>();
    for (const parameter of all) {
      if (seen.has(parameter)) throw new ArgumentError(`Parameter '${parameter.fqn}' is given to the optimizer twice`);
      seen.add(parameter);
    }
    for (const { learningRate, weightDecay } of groups) {
      if (!(learningRate >= 0 && weightDecay >= 0)) {
        throw new ArgumentError(
          `Cannot optimize with learningRate ${learningRate} and weightDecay ${weightDecay}: neither may be negative`,
        );
      }
    }
    this.groups = groups;
    this.#stateNames = stateNames;
  }

  /** Updates every parameter that has a gradient. */
  step(): void {
    for (const state of this.runs()) {
      const ready = state.parameters.filter(({ parameter }) => parameter.trainable && parameter.grad !== undefined);
      if (ready.length === 0) continue;
      state.run.beginWrite();
      try {
        for (const [step, members] of this.#byStep(ready)) {
          this.update(state, this.#writeRanges(state, members), members.length, step);
        }
      } finally {
        state.run.endWrite();
      }
    }
  }

  /** Drops all gradients. */
  zeroGrad(): void {
    for (const group of this.groups) for (const parameter of group.parameters) parameter.zeroGrad();
  }

  /** Every state of every trained parameter, allocated (zero) if it is not yet. */
  *stateViews(): Generator<OptimizerStateView> {
    for (const { parameters, states } of this.runs()) {
      for (const { parameter } of parameters) {
        if (!parameter.trainable) continue;
        for (const [i, name] of this.#stateNames.entries()) {
          const base = states[i];
          if (base === undefined) continue;
          yield { parameter, name, ptr: devicePtr(base.ptr + parameter.storage.runOffset * float32.byteLength) };
        }
      }
    }
  }

  /** Steps taken by a parameter. */
  stepsOf(parameter: Parameter): number {
    return this.#steps.get(parameter) ?? 0;
  }

  /** Sets the steps taken by a parameter: when a checkpoint is loaded. */
  setSteps(parameter: Parameter, steps: number): void {
    this.#steps.set(parameter, steps);
  }

  /** Bytes of all states on this rank. */
  get stateBytes(): number {
    return this.runs().reduce((sum, { states }) => sum + states.reduce((s, state) => s + state.byteLength, 0), 0);
  }

  /** Frees the states. */
  dispose(): void {
    for (const { states, ranges } of this.#runs.values()) {
      for (const state of states) state.release();
      ranges.release();
    }
    this.#runs.clear();
  }

  /** One kernel call: `numRanges` ranges of a run, all at the same step (from 1). */
  protected abstract update(state: RunState, ranges: DevicePtr, numRanges: number, step: number): void;

  /** The runs that hold a trained parameter, in the order of the groups; their states are allocated at first use. */
  protected runs(): readonly RunState[] {
    for (const { parameters } of this.groups) {
      for (const { trainable, storage: { run } } of parameters) {
        if (trainable && !this.#runs.has(run)) this.#runs.set(run, this.#newState(run));
      }
    }
    return [...this.#runs.values()];
  }

  /** Frozen parameters of the run are members too: they may be trained later. */
  #newState(run: ParameterRun): RunState {
    const parameters = this.groups.flatMap((group) =>
      group.parameters.filter((parameter) => parameter.storage.run === run).map((parameter) => ({ parameter, group }))
    );
    return {
      run,
      parameters,
      states: this.#stateNames.map((name) => zeroed(run.device, run.length, `optimizer ${name}`)),
      ranges: Buffer.allocate(run.device, parameters.length * RANGE_BYTES, "optimizer ranges"),
    };
  }

  #byStep(ready: RunState["parameters"]): Map<number, RunState["parameters"][number][]> {
    const byStep = new Map<number, RunState["parameters"][number][]>();
    for (const member of ready) {
      const step = this.stepsOf(member.parameter) + 1;
      this.#steps.set(member.parameter, step);
      const list = byStep.get(step);
      if (list === undefined) byStep.set(step, [member]);
      else list.push(member);
    }
    return byStep;
  }

  #writeRanges(state: RunState, members: RunState["parameters"]): DevicePtr {
    const table = new DataView(new ArrayBuffer(members.length * RANGE_BYTES));
    members.forEach(({ parameter, group }, i) => {
      const { runOffset, shard } = parameter.storage;
      table.setUint32(i * RANGE_BYTES, runOffset, true);
      table.setUint32(i * RANGE_BYTES + 4, runOffset + shard.numel, true);
      table.setFloat32(i * RANGE_BYTES + 8, group.learningRate, true);
      table.setFloat32(i * RANGE_BYTES + 12, group.weightDecay, true);
    });
    state.run.device.copyIn(state.ranges.ptr, new Uint8Array(table.buffer));
    return state.ranges.ptr;
  }
}

function zeroed(device: Device, length: number, owner: string): Buffer {
  const buffer = Buffer.allocate(device, length * float32.byteLength, owner);
  device.kernels.fill(float32, buffer.ptr, length, 0);
  return buffer;
}
