/**
 * The contract of an optimizer's update: the states of a parameter, the numbers of its record, and the kernels that update the
 * parameters of a flat shard. An optimizer chooses a rule for each of its parameters; a rule knows neither groups nor steps.
 *
 * @module
 */
import type { Device, DevicePtr } from "../device/device.ts";
import type { ArgsOf } from "../device/kernels/table.ts";
import type { DType } from "../dtype.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { ShardLayout } from "../tensor/shard_layout.ts";
import type { OptimizerSettings, ParamGroup } from "./groups.ts";
import type { StateBucket } from "./states.ts";
import type { WorkMemory } from "./work_memory.ts";

/** Arguments of a kernel that updates a flat shard by records, but for the states. */
export type UpdateArgs = Omit<ArgsOf<"adamw">, "expAvg" | "expAvgSq">;

/** One state of a parameter. */
export interface StateSpec {
  /** PyTorch's name, e.g. `exp_avg`. */
  readonly name: string;
  /** dtype of its elements: float32, or uint8 for the codes of 8-bit states. @default float32 */
  readonly dtype?: DType;
  /** The first values. @default zeros */
  readonly initial?: "parameter";
  /**
   * The elements that this rank keeps.
   *
   * @param parameters all parameters of the bucket, `parameter` included
   * @default an element for each element that the rank keeps of the parameter
   */
  readonly layout?: (parameter: Parameter, parameters: readonly Parameter[]) => ShardLayout;
  /** Elements in memory in front of the layout's. @default 0 */
  readonly leadingPad?: (parameter: Parameter) => number;
}

/** The learning rate, the weight decay, and three numbers that depend on the kernel: see `wasm/src/optimizer.rs`. */
export type RecordSettings = readonly [number, number, number, number, number];

/** An update of one bucket. */
export interface UpdateCall<S extends OptimizerSettings> {
  /** The device of the flat shard. */
  readonly device: Device;
  /** The parameters that are updated, with their states. */
  readonly bucket: StateBucket<S>;
  /** Arguments of a kernel that updates the flat shard by the records, and counts the steps. */
  readonly args: UpdateArgs;
  /** Address of a state of the bucket's first parameter, behind which the others lie, once the update runs. */
  readonly state: (name: string) => DevicePtr;
  /** The learning rate of a group in this step. */
  learningRateOf(group: ParamGroup<S>): number;
}

/** The update of parameters by one algorithm. */
export interface UpdateRule<S extends OptimizerSettings> {
  /** The states of each parameter. */
  readonly states: readonly StateSpec[];
  /** The numbers of a parameter's record in the next step. */
  record(group: ParamGroup<S>, learningRate: number, parameter: Parameter): RecordSettings;
  /**
   * Prepares the update of the parameters of a bucket that have a gradient: plans all memory that it needs, and enqueues nothing.
   *
   * @returns updates; {@link UpdateCall.state} and the planned memory have addresses by then
   */
  prepare(call: UpdateCall<S>, work: WorkMemory): () => void;
}

/** The choice of rules and states for parameters. */
export interface RuleChoice<S extends OptimizerSettings> {
  /** The rule that updates a parameter. */
  ruleOf(parameter: Parameter, group: ParamGroup<S>): UpdateRule<S>;
  /** Further states of a group's parameters, besides the rule's. */
  statesBeside(group: ParamGroup<S>): readonly StateSpec[];
}
