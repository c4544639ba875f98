/** Scenarios for the ranks of FSDP's tests: each takes and returns plain data, so that Workers can play it. @module */
import type { Call, ProcessGroup } from "../../doors/comm.ts";
import type { Device } from "../../doors/device.ts";
import { lifeCycle } from "./life_cycle_scenario.ts";
import { unused } from "./unused_scenario.ts";

/** One rank of a world. */
export interface Rank {
  readonly device: Device;
  readonly group: ProcessGroup;
  readonly calls: Call[];
}

/** Name of a scenario. */
export type Scenario = "lifeCycle" | "unused";

/** All scenarios. */
export const SCENARIOS: Readonly<Record<Scenario, (rank: Rank, data: unknown) => unknown>> = {
  lifeCycle,
  unused,
};
