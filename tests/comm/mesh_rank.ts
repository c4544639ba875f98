/** A Worker that tells where it is in a mesh. @module */
import { deviceMesh } from "../../src/comm/mesh.ts";
import type { MeshShape } from "../../src/comm/mesh.ts";
import { ProcessGroup } from "../../src/comm/process_group.ts";
import { openLoopback } from "../../src/comm/transports/loopback.ts";
import { serveRank } from "../../src/comm/transports/loopback_workers.ts";
import { openCommDevice } from "../support/comm_device.ts";

function isShape(data: unknown): data is MeshShape {
  return typeof data === "object" && data !== null;
}

serveRank(async ({ world, rank, data }) => {
  if (!isShape(data)) throw new Error("no shape");
  using group = new ProcessGroup(openLoopback(world, rank, await openCommDevice(2 ** 24)));
  const mesh = deviceMesh(group, data);
  const [replicate, shard] = [mesh.axis("replicate"), mesh.axis("shard")];
  const sums = [replicate.sum([rank], "ranks")[0], shard.sum([rank], "ranks")[0]];
  return { coordinate: mesh.coordinate, replicate: replicate.worldRanks, shard: shard.worldRanks, sums };
});
