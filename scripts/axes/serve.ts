/**
 * Ranks of trainings over axes as Workers of a loopback world.
 *
 * @module
 */
import { type CpuMath, openDevice } from "../../doors/device.ts";
import { openLoopback } from "../../doors/testing.ts";
import { serveRanks } from "../../tests/support/rank_pool.ts";
import type { AxesRank } from "./training.ts";

/** What a task says of the ranks' devices. */
export interface DeviceOrders {
  /** The kernels of the ranks. @default wasm, whose bits are the same everywhere */
  readonly cpuMath?: CpuMath;
}

/** Serves a training as the ranks of a Worker: opens device and group for each task, and ends together. */
export function serveTraining<T extends DeviceOrders>(
  isOrders: (data: unknown) => data is T,
  train: (rank: AxesRank, orders: T) => unknown,
): void {
  serveRanks(async ({ rank, size, world, data }) => {
    if (!isOrders(data)) throw new Error("not what a rank over axes is given");
    const { cpuMath = "wasm" } = data;
    const device = await openDevice("cpu", { cpuMath, memoryBytes: 2 ** 28, ranksOnHost: size });
    using group = openLoopback(world, rank, device);
    const report = await train({ device, group }, data);
    group.barrier("end");
    device.dispose();
    return report;
  });
}

/** True for an object that says a config and axes. */
export function hasAxes(data: unknown): data is { readonly config: unknown; readonly axes: unknown } {
  return typeof data === "object" && data !== null && "config" in data && "axes" in data;
}
