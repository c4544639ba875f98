/** A Worker that runs scenarios of the transport suite as a loopback rank, each in its own world. @module */
import { ProcessGroup } from "../../src/comm/process_group.ts";
import { openLoopback } from "../../src/comm/transports/loopback.ts";
import type { LoopbackWorld } from "../../src/comm/transports/loopback.ts";
import { serveRank } from "../../src/comm/transports/loopback_workers.ts";
import type { RankContext } from "../../src/comm/transports/loopback_workers.ts";
import { RecordingTransport } from "../../src/comm/recording.ts";
import { runScenarios } from "../conformance/transport.ts";
import { openCommDevice } from "../support/comm_device.ts";

/** What a rank is told to do. */
export interface Batch {
  readonly scenarios: readonly string[];
  readonly worlds: readonly LoopbackWorld[];
  readonly recorded: boolean;
}

function isBatch(data: unknown): data is Batch {
  return typeof data === "object" && data !== null && "scenarios" in data;
}

serveRank(async ({ rank, data }: RankContext) => {
  if (!isBatch(data)) throw new Error(`rank ${rank} was told '${data}'`);
  const device = await openCommDevice();
  return runScenarios(data.scenarios, device, (index) => {
    const world = data.worlds[index];
    if (world === undefined) throw new Error("no world");
    const transport = openLoopback(world, rank, device, { timeoutSeconds: 20 });
    return new ProcessGroup(data.recorded ? new RecordingTransport(transport) : transport);
  });
});
