/**
 * One rank of a training on a mesh: a Worker.
 *
 * @module
 */
import { openDevice } from "../../doors/device.ts";
import { openLoopback } from "../../doors/testing.ts";
import { serveRanks } from "../../tests/support/rank_pool.ts";
import { type MeshOrders, trainOnMesh } from "./training.ts";

function isOrders(data: unknown): data is MeshOrders {
  return typeof data === "object" && data !== null && "config" in data && "axes" in data;
}

serveRanks(async ({ rank, size, world, data }) => {
  if (!isOrders(data)) throw new Error("not what a rank of a mesh is given");
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 28, ranksOnHost: size });
  using group = openLoopback(world, rank, device);
  const report = await trainOnMesh({ device, group }, data);
  group.barrier("end");
  device.dispose();
  return report;
});
