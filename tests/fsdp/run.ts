/** Runs a scenario of `scenarios.ts`: one rank here, several as Workers. @module */
import { type Device, openDevice, openLoopback, ProcessGroup, runLoopback } from "../../mod.ts";
import { type RecordedCall, RecordingTransport } from "../../src/comm/recording.ts";
import { createLoopbackWorld } from "../../src/comm/transports/loopback.ts";
import type { Rank, Scenario } from "./scenarios.ts";

/** A world of one rank in this thread, on a device of its own. */
export async function openRank(device?: Device, calls: RecordedCall[] = []): Promise<Rank> {
  const own = device ?? await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 29 });
  const transport = new RecordingTransport(openLoopback(createLoopbackWorld(1), 0, own), calls);
  return { device: own, group: new ProcessGroup(transport), calls: transport.calls };
}

/** What each of `world` ranks returned. */
export async function runRanks(world: number, scenario: Scenario, data: unknown): Promise<readonly unknown[]> {
  return await runLoopback(world, new URL("./rank.ts", import.meta.url), { scenario, data });
}
