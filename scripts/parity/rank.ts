/**
 * One rank of parity runs, one after another: a Worker.
 *
 * @module
 */
import { type CpuMath, openDevice } from "../../doors/device.ts";
import { openLoopback } from "../../doors/testing.ts";
import type { LoopbackWorld } from "../../src/comm/control/workers.ts";
import { serveRanks } from "../../tests/support/rank_pool.ts";
import { type Trace, train, type TrainingCase } from "./training.ts";

/** The message to the ranks of a run. */
export interface RankData {
  readonly cpuMath: CpuMath;
  /** Worlds, one after another, and the trainings of each: what trainings leave in a device's memory adds up. */
  readonly parts: readonly { readonly world: LoopbackWorld; readonly trainings: readonly TrainingCase[] }[];
}

function isRankData(data: unknown): data is RankData {
  return typeof data === "object" && data !== null && "parts" in data && "cpuMath" in data;
}

serveRanks(async ({ rank, size, data }) => {
  if (!isRankData(data)) throw new Error("not what a parity rank is given");
  const traces: Trace[] = [];
  for (const { world, trainings } of data.parts) {
    const device = await openDevice("cpu", { cpuMath: data.cpuMath, memoryBytes: 2 ** 28, ranksOnHost: size });
    const group = openLoopback(world, rank, device);
    for (const training of trainings) traces.push(await train(device, group, training));
    group.barrier("end");
    group.dispose();
    device.dispose();
  }
  return traces;
});
