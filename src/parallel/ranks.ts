/**
 * The ranks of a parallelism, from the mesh or group that its user gives.
 *
 * @module
 */
import { DeviceMesh } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { InternalError, UnsupportedError } from "../errors.ts";

/**
 * The group of a mesh of one axis, or the group that was given.
 *
 * @param what the action in the error's text, e.g. `shard`
 * @throws {UnsupportedError} for a mesh of several axes, and for one axis of it
 */
export function ranksOf(mesh: DeviceMesh | ProcessGroup, what: string): ProcessGroup {
  const group = mesh instanceof DeviceMesh ? mesh.group : mesh;
  const axes = mesh instanceof DeviceMesh ? mesh.axes : group.mesh?.mesh.axes ?? [];
  if (axes.length <= 1) return group;
  const over = group.mesh === undefined ? "a mesh" : `axis '${group.mesh.axis}' of a mesh`;
  const names = axes.join(" × ");
  throw new UnsupportedError(
    `Cannot ${what} over ${over} of ${names}: ranks that differ on the other axes would train different models; ` +
      "give a mesh of one axis over all ranks, or fullyShard one of two, of which the first replicates and the second shards",
  );
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
 * @throws {UnsupportedError} for a mesh of more axes, and for one axis of a larger mesh
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
