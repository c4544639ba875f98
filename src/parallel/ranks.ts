/**
 * The ranks of a parallelism, from the mesh or group that its user gives.
 *
 * @module
 */
import { DeviceMesh } from "../comm/mesh.ts";
import { ProcessGroup } from "../comm/process_group.ts";
import { ArgumentError, InternalError, UnsupportedError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { valueText } from "../words.ts";

/**
 * The ranks of a mesh of one axis, also where that is an axis of a larger mesh, or the group that was given.
 *
 * @param what the action in the error's text, e.g. `shard`
 * @throws {ArgumentError} if it is neither
 * @throws {UnsupportedError} for a mesh of several axes, and for the bare group of one axis of it
 */
export function ranksOf(mesh: DeviceMesh | ProcessGroup, what: string): ProcessGroup {
  requireRanks(what, mesh);
  const isMesh = mesh instanceof DeviceMesh;
  const axes = isMesh ? mesh.axes : mesh.mesh?.mesh.axes ?? [];
  if (axes.length <= 1) return isMesh ? mesh.group : mesh;
  const over = isMesh ? "a mesh" : `the group of axis '${mesh.mesh?.axis}' of a mesh`;
  const names = axes.join(" × ");
  throw new UnsupportedError(
    `Cannot ${what} over ${over} of ${names}: ranks that differ on the other axes would train different models; give a mesh of ` +
      "one axis over all ranks, an axis whose other axes divide the model or its data otherwise (mesh.get), or fullyShard two " +
      "axes, of which the first replicates and the second shards (mesh.slice)",
  );
}

/**
 * The name of a mesh's only axis.
 *
 * @param what the action in the error's text, e.g. `cut`
 * @throws {ArgumentError} if it is no mesh, or has several axes
 */
export function requireOneAxis(mesh: DeviceMesh, what: string): string {
  if (!(mesh instanceof DeviceMesh)) {
    throw new ArgumentError(
      `Cannot ${what} over ${valueText(mesh)}: expected a DeviceMesh of one axis, as mesh.get gives it`,
    );
  }
  const { axes } = mesh;
  const [name] = axes;
  if (name !== undefined && axes.length === 1) return name;
  throw new ArgumentError(`Cannot ${what} over the axes ${axes.join(" × ")}: give one, by mesh.get or mesh.flatten`);
}

/** The groups over which parameters are sharded and replicated, as this rank sees them. */
export interface ShardRanks {
  /** Every rank of the mesh. */
  readonly all: ProcessGroup;
  /** The ranks that hold a parameter's shards. */
  readonly group: ProcessGroup;
  /** The ranks that hold the same shards as this rank (HSDP); undefined where no other rank does (FSDP). */
  readonly replicas: ProcessGroup | undefined;
}

/**
 * The ranks to shard over: all ranks of a group or of a mesh of one axis. On a mesh of two axes, parameters are replicated along the
 * first and sharded along the second.
 *
 * @throws {ArgumentError} if it is neither
 * @throws {UnsupportedError} for a mesh of more axes, and for the bare group of one axis of a larger mesh
 */
export function shardRanksOf(mesh: DeviceMesh | ProcessGroup): ShardRanks {
  if (mesh instanceof DeviceMesh && mesh.axes.length === 2) {
    const [replicate, shard] = mesh.axes.map((axis) => mesh.axis(axis));
    if (replicate === undefined || shard === undefined) throw new InternalError("a mesh that lacks its axes");
    return { all: mesh.group, group: shard, replicas: replicate.size === 1 ? undefined : replicate };
  }
  const group = ranksOf(mesh, "shard");
  return { all: group, group, replicas: undefined };
}

/**
 * Refuses parameters that are cut over some of the ranks that are to share or copy them.
 *
 * @throws {ArgumentError} naming the parameter, the axis and both lists of ranks
 */
export function requireApart(parameters: readonly Parameter[], { worldRanks }: ProcessGroup, what: string): void {
  for (const { fqn, placements } of parameters) {
    for (const { axis } of placements) {
      if (axis.worldRanks.filter((rank) => worldRanks.includes(rank)).length === 1) continue;
      throw new ArgumentError(
        `Cannot ${what} '${fqn}' over ranks ${worldRanks.join(", ")}: it is cut over axis '${axis.name}' of ranks ` +
          `${axis.worldRanks.join(", ")}; give other axes of the mesh, by mesh.get or mesh.slice`,
      );
    }
  }
}

/**
 * Refuses what has no ranks.
 *
 * @param what is not done, e.g. `shard`
 * @throws {ArgumentError} with the value
 */
function requireRanks(what: string, mesh: unknown): void {
  if (mesh instanceof DeviceMesh || mesh instanceof ProcessGroup) return;
  throw new ArgumentError(
    `Cannot ${what} over ${
      valueText(mesh)
    }: expected ranks as 'mesh', a DeviceMesh or a ProcessGroup, e.g. { mesh: run.mesh }`,
  );
}

/** Groups of neighbours, by the group that was cut and their size. */
const NEIGHBOURS: WeakMap<ProcessGroup, Map<number, ProcessGroup>> = new WeakMap();

/** This rank's part of a group that is cut into parts of `size` neighbouring ranks. The first call with a size is collective. */
export function neighboursOf(group: ProcessGroup, size: number): ProcessGroup {
  const known = NEIGHBOURS.get(group) ?? new Map<number, ProcessGroup>();
  NEIGHBOURS.set(group, known);
  const begin = group.rank - group.rank % size;
  const ranks = Array.from({ length: size }, (_, i) => begin + i);
  const before = known.get(size);
  const part = before?.disposed === false ? before : group.split(ranks, `${group.name} by ${size}`);
  known.set(size, part);
  return part;
}
