/**
 * One rank of a parity run: a Worker.
 *
 * @module
 */
import { type CpuMath, openDevice } from "../../doors/device.ts";
import { openLoopback, serveRank } from "../../doors/testing.ts";
import { type Trace, train, type TrainingCase } from "./training.ts";

/** What a run of ranks is given. */
export interface RankData {
  readonly cpuMath: CpuMath;
  readonly trainings: readonly TrainingCase[];
}

function isRankData(data: unknown): data is RankData {
  return typeof data === "object" && data !== null && "trainings" in data && "cpuMath" in data;
}

serveRank(async ({ rank, size, world, data }) => {
  if (!isRankData(data)) throw new Error("not what a parity rank is given");
  const device = await openDevice("cpu", { cpuMath: data.cpuMath, memoryBytes: 2 ** 28, ranksOnHost: size });
  using group = openLoopback(world, rank, device);
  const traces: Trace[] = [];
  for (const training of data.trainings) traces.push(await train(device, group, training));
  group.barrier("end");
  return traces;
});
