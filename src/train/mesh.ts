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

type RanksOfRun = Pick<Run, "group" | "localWorldSize"> & Partial<Pick<Run, "hasEqualHosts">>;

/**
 * The axes of a run over which a model is sharded or copied: its data axes, where sizes of axes are given, else the mesh of
 * the configuration.
 *
 * @throws {ConfigError} as {@link meshOf}
 */
export function dataMeshOf(run: RanksOfRun & Pick<Run, "mesh">, config: StepConfig): DeviceMesh {
  if (axesOf(config, run.group.size) === undefined) return meshOf(run, config.mesh);
  const { mesh } = run;
  // Ranks that share positions, or divide the experts, have a copy of the model together, as those have that read other samples.
  return withCopies(mesh, ["shard", "expert", "context"]);
}

/** The axes of a run over which experts are sharded or copied that its expert axis divides. */
export function expertMeshOf({ mesh }: Pick<Run, "mesh">): DeviceMesh {
  return withCopies(mesh, ["shard", "context"]);
}

/** The mesh of some axes, joined to one, beside the axis of copies, if there is one. */
function withCopies(mesh: DeviceMesh, axes: readonly string[]): DeviceMesh {
  const joined = axes.filter((name) => mesh.axes.includes(name));
  const shards = joined.join("_");
  if (joined.length > 1) mesh.flatten(joined, shards);
  return mesh.axes.includes("replicate") ? mesh.slice(["replicate", shards]) : mesh.get(shards);
}

/** The ranks of a run by what they share. */
export interface RankLayout {
  /** Copies of the model. */
  readonly replicas: number;
  /** Ranks that share a copy. */
  readonly shards: number;
  /** Ranks that share the positions of a row; each copy is sharded over them too. */
  readonly context: number;
  /** Ranks that divide the experts; the rest of each copy is sharded over them too. */
  readonly expert: number;
  /** Ranks that compute with parts of the same weights. */
  readonly tensor: number;
  /** Ranks that have consecutive stages of the model. */
  readonly pipeline: number;
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
    const { replicate = 1, shard = 1, expert = 1, context = 1, tensor = 1, pipeline = 1 } = axes;
    return { replicas: replicate, shards: shard * expert * context, context, expert, tensor, pipeline };
  }
  const shards = config.strategy === "fsdp" ? shardRanks(run, config.mesh) : 1;
  return { replicas: size / shards, shards, context: 1, expert: 1, tensor: 1, pipeline: 1 };
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
function shardRanks({ group: { size }, localWorldSize, hasEqualHosts }: RanksOfRun, mesh: string): number {
  if (mesh === "shard") return size;
  if (mesh === "hybrid" && hasEqualHosts === false) {
    const expected = `as many of the ${countOf(size, "rank")} on each host, host by host, or a mesh in numbers`;
    throw new ConfigError([{ path: "mesh", expected, got: "hybrid, on hosts with unequal numbers of ranks" }]);
  }
  const [replicate = NaN, shard = NaN] = mesh === "hybrid"
    ? [size / localWorldSize, localWorldSize]
    : mesh.split("x").map(Number);
  if (Number.isInteger(replicate) && replicate * shard === size) return shard;
  const got = mesh === "hybrid" ? `hybrid, with ${countOf(localWorldSize, "rank")} on a host` : mesh;
  throw new ConfigError([{ path: "mesh", expected: `a mesh of ${countOf(size, "rank")}`, got }]);
}
