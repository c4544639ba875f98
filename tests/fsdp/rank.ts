/** A Worker that plays one rank of the scenarios in `scenarios.ts`. @module */
import type { Call } from "../../doors/comm.ts";
import { openDevice } from "../../doors/device.ts";
import { openLoopback } from "../../doors/testing.ts";
import { serveRanks } from "../support/rank_pool.ts";
import { type Scenario, SCENARIOS } from "./scenarios.ts";

/** The message to a rank. */
export interface RankData {
  readonly scenario: Scenario;
  readonly data: unknown;
}

function isRankData(data: unknown): data is RankData {
  return typeof data === "object" && data !== null && "scenario" in data;
}

serveRanks(async ({ rank, size, world, data }) => {
  if (!isRankData(data)) throw new Error("not what a rank is told");
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 29, ranksOnHost: size });
  using group = openLoopback(world, rank, device, { timeoutSeconds: 60 });
  const calls: Call[] = [];
  group.observe((call) => void calls.push(call));
  const result = await SCENARIOS[data.scenario]({ device, group, calls }, data.data);
  group.barrier("end");
  device.dispose();
  return result;
});
