/** A rank as a Worker, or a process, that has threads: it gives the bits of a training. @module */
import { openDevice } from "../../../doors/device.ts";
import { serveRank } from "../../../src/comm/loopback_workers.ts";
import { trained } from "../trained.ts";

serveRank(async ({ rank, data }) => {
  const device = await openDevice("cpu", { cpuMath: "native", memoryBytes: 2 ** 27, threads: Number(data) });
  const bits = trained(device);
  // The last one leaves its threads behind.
  if (rank === 0) device.dispose();
  return bits;
});
