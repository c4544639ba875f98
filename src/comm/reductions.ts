/**
 * What collectives that sum are told.
 *
 * @module
 */
import type { DeviceScalar } from "../device/scalars.ts";
import type { Phase } from "./call.ts";
import type { AllReduceArgs, ReduceScatterArgs } from "./data_plane.ts";

/** How an all-reduce combines, and its name in messages. */
export interface AllReduceOptions {
  /** Default `sum`. */
  readonly op?: AllReduceArgs["op"];
  /** Factor applied once, after the sum; floats only. @default 1 */
  readonly scale?: DeviceScalar | undefined;
  /** What is reduced: FQN of a unit, or e.g. `token count`. */
  readonly unit: string;
  /** When in the step, for messages. */
  readonly phase?: Phase;
}

/** What `ProcessGroup.reduceScatter` takes. */
export type ReduceScatterOptions = Omit<ReduceScatterArgs, "scale"> & Pick<AllReduceOptions, "scale">;

/** What ranks compare of a scale: its factor, and 1 where nothing scales. */
export function factorOf(scale: AllReduceOptions["scale"]): number {
  return scale === undefined ? 1 : scale.value;
}
