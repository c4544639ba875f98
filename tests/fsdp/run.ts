/** Runs a scenario of `scenarios.ts`: one rank here, several as Workers. @module */
import type { Call } from "../../doors/comm.ts";
import { type Device, openDevice } from "../../doors/device.ts";
import { openLoopback } from "../../doors/testing.ts";
import { createLoopbackWorld } from "../../src/comm/data/loopback.ts";
import { runPooled } from "../support/rank_pool.ts";
import type { Rank, Scenario } from "./scenarios.ts";

/** A world of one rank in this thread, on a device of its own. */
export async function openRank(device?: Device, calls: Call[] = []): Promise<Rank> {
  const own = device ?? await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 29 });
  const group = openLoopback(createLoopbackWorld(1), 0, own);
  group.observe((call) => void calls.push(call));
  return { device: own, group, calls };
}

/** The results of `world` ranks. */
export async function runRanks(world: number, scenario: Scenario, data: unknown): Promise<readonly unknown[]> {
  return await runPooled(world, new URL("./rank.ts", import.meta.url), { scenario, data });
}
