/**
 * The mesh of a run, by its configuration.
 *
 * @module
 */
import { type DeviceMesh, deviceMesh } from "../comm/mesh.ts";
import { ConfigError } from "../errors.ts";
import { countOf } from "../words.ts";
import { axesOf } from "./axes_config.ts";
import type { StepConfig } from "./config.ts";
import type { Run } from "./run.ts";

type RanksOfRun = Pick<Run, "group" | "localWorldSize">;

/**
 * The axes of a run over which a model is sharded or copied: its data axes, where sizes of axes are given, else the mesh of
 * the configuration.
 *
 * @throws {ConfigError} as {@link meshOf}
 */
export function dataMeshOf(run: RanksOfRun & Pick<Run, "mesh">, config: StepConfig): DeviceMesh {
  if (axesOf(config, run.group.size) === undefined) return meshOf(run, config.mesh);
  return run.mesh.axes.includes("replicate") ? run.mesh.slice(["replicate", "shard"]) : run.mesh.get("shard");
}

/** Three sizes: copies of the model, ranks that share a copy, and ranks that compute with parts of the same weights. */
export interface RankLayout {
  readonly replicas: number;
  readonly shards: number;
  readonly tensor: number;
}

/**
 * The layout of a configuration's ranks.
 *
 * @throws {ConfigError} as {@link meshOf} and `axesOf`
 */
export function layoutOf(run: RanksOfRun, config: StepConfig): RankLayout {
  const { group: { size } } = run;
  const axes = axesOf(config, size);
  if (axes !== undefined) {
    return { replicas: axes["replicate"] ?? 1, shards: axes["shard"] ?? 1, tensor: axes["tensor"] ?? 1 };
  }
  const shards = config.strategy === "fsdp" ? shardRanks(run, config.mesh) : 1;
  return { replicas: size / shards, shards, tensor: 1 };
}

/**
 * Lays the mesh of a configuration over the ranks of a run. Collective.
 * - `shard`: one axis;
 * - `hybrid`: the ranks of a host shard, and hosts replicate;
 * - `2x4`: 2 replicas, each sharded over 4 ranks.
 *
 * @throws {ConfigError} if it has another number of ranks than the run
 */
function meshOf(run: RanksOfRun, mesh: string): DeviceMesh {
  const { group } = run;
  const shard = shardRanks(run, mesh);
  return deviceMesh(group, mesh === "shard" ? { shard } : { replicate: group.size / shard, shard });
}

/**
 * Number of ranks over which that mesh shards a model.
 *
 * @throws {ConfigError} as {@link meshOf}
 */
function shardRanks({ group: { size }, localWorldSize }: RanksOfRun, mesh: string): number {
  if (mesh === "shard") return size;
  const [replicate = NaN, shard = NaN] = mesh === "hybrid"
    ? [size / localWorldSize, localWorldSize]
    : mesh.split("x").map(Number);
  if (Number.isInteger(replicate) && replicate * shard === size) return shard;
  const got = mesh === "hybrid" ? `hybrid, with ${countOf(localWorldSize, "rank")} on a host` : mesh;
  throw new ConfigError([{ path: "mesh", expected: `a mesh of ${countOf(size, "rank")}`, got }]);
}
