/**
 * The ranks that a parallelism runs over, from what its user gives.
 *
 * @module
 */
import { DeviceMesh } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { UnsupportedError } from "../errors.ts";

/**
 * The group of a mesh of one axis, or the group that was given.
 *
 * @param what what is to be done, e.g. `shard`
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
      "give a mesh of one axis over all ranks",
  );
}
