/**
 * One rank of the zoo: a Worker.
 *
 * @module
 */
import { type CpuMath, openDevice } from "../../doors/device.ts";
import { openLoopback } from "../../doors/testing.ts";
import { serveRanks } from "../../tests/support/rank_pool.ts";
import type { ZooModel } from "./families.ts";
import { trainModel } from "./training.ts";

/** The message to a rank. */
export interface ZooOrder {
  readonly cpuMath: CpuMath;
  readonly steps: number;
  readonly model: ZooModel;
}

function isOrder(data: unknown): data is ZooOrder {
  return typeof data === "object" && data !== null && "model" in data && "steps" in data;
}

serveRanks(async ({ rank, size, world, data }) => {
  if (!isOrder(data)) throw new Error("not what a rank of the zoo is given");
  const device = await openDevice("cpu", { cpuMath: data.cpuMath, memoryBytes: 2 ** 28, ranksOnHost: size });
  using group = openLoopback(world, rank, device);
  const report = await trainModel({ device, group }, data.model, data.steps);
  group.barrier("end");
  device.dispose();
  return report;
});
