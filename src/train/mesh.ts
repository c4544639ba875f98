/**
 * The mesh of a run, by its configuration.
 *
 * @module
 */
import { type DeviceMesh, deviceMesh } from "../comm/mesh.ts";
import { ConfigError } from "../errors.ts";
import { countOf } from "../words.ts";
import type { Run } from "./run.ts";

type RanksOfRun = Pick<Run, "group" | "localWorldSize">;

/**
 * Lays the mesh of a configuration over the ranks of a run. Collective.
 * - `shard`: one axis;
 * - `hybrid`: the ranks of a host shard, and hosts replicate;
 * - `2x4`: 2 replicas, each sharded over 4 ranks.
 *
 * @throws {ConfigError} if it has another number of ranks than the run
 */
export function meshOf(run: RanksOfRun, mesh: string): DeviceMesh {
  const { group } = run;
  const shard = shardRanks(run, mesh);
  return deviceMesh(group, mesh === "shard" ? { shard } : { replicate: group.size / shard, shard });
}

/**
 * Number of ranks over which that mesh shards a model.
 *
 * @throws {ConfigError} as {@link meshOf}
 */
export function shardRanks({ group: { size }, localWorldSize }: RanksOfRun, mesh: string): number {
  if (mesh === "shard") return size;
  const [replicate = NaN, shard = NaN] = mesh === "hybrid"
    ? [size / localWorldSize, localWorldSize]
    : mesh.split("x").map(Number);
  if (Number.isInteger(replicate) && replicate * shard === size) return shard;
  const got = mesh === "hybrid" ? `hybrid, with ${countOf(localWorldSize, "rank")} on a host` : mesh;
  throw new ConfigError([{ path: "mesh", expected: `a mesh of ${countOf(size, "rank")}`, got }]);
}
