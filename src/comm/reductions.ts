/**
 * Arguments of collectives that sum, as callers give them.
 *
 * @module
 */
import type { DeviceScalar } from "../device/scalars.ts";
import type { Phase } from "./call.ts";
import type { AllReduceArgs, ReduceScatterArgs } from "./data_plane.ts";

/** Options of an all-reduce. */
export interface AllReduceOptions {
  /** Default `sum`. */
  readonly op?: AllReduceArgs["op"];
  /** Factor applied once, after the sum; floats only. @default 1 */
  readonly scale?: DeviceScalar | undefined;
  /** Name of what is reduced: FQN of a unit, or e.g. `token count`. */
  readonly unit: string;
  /** Phase of the step, for messages. */
  readonly phase?: Phase;
}

/** Arguments of `ProcessGroup.reduceScatter`. */
export type ReduceScatterOptions = Omit<ReduceScatterArgs, "scale"> & Pick<AllReduceOptions, "scale">;

/** The factor of a scale, which ranks compare; 1 without a scale. */
export function factorOf(scale: AllReduceOptions["scale"]): number {
  return scale === undefined ? 1 : scale.value;
}
