/**
 * A grid of ranks in row-major order with named axes. Each axis through a rank is a group of its own; the mesh gives it no
 * meaning.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError } from "../errors.ts";
import { countOf } from "../words.ts";
import type { ProcessGroup } from "./process_group.ts";

/** Length of each axis, outermost first, e.g. `{ replicate: 2, shard: 4 }`. */
export type MeshShape = Readonly<Record<string, number>>;

/** An axis of a mesh with several axes. */
export interface MeshAxis {
  /** The mesh. */
  readonly mesh: DeviceMesh;
  /** Name of the axis. */
  readonly axis: string;
}

/** A grid of ranks. Made by {@link deviceMesh}. */
export class DeviceMesh {
  /** The group of all ranks. */
  readonly group: ProcessGroup;
  /** Names of the axes, outermost first. */
  readonly axes: readonly string[];
  /** Lengths of the axes. */
  readonly shape: readonly number[];
  /** This rank's place on each axis. */
  readonly coordinate: readonly number[];
  readonly #groups: ReadonlyMap<string, ProcessGroup>;

  /**
   * Use {@link deviceMesh}.
   *
   * @param groups the group along each axis through this rank
   */
  constructor(group: ProcessGroup, shape: MeshShape, groups: ReadonlyMap<string, ProcessGroup>) {
    this.group = group;
    this.axes = Object.keys(shape);
    this.shape = Object.values(shape);
    let stride = group.size;
    this.coordinate = this.shape.map((length) => {
      stride /= length;
      return Math.floor(group.rank / stride) % length;
    });
    this.#groups = groups;
  }

  /** The group of the ranks that differ from this one on axis `name` only. @throws {ArgumentError} if there is no such axis */
  axis(name: string): ProcessGroup {
    const group = this.#groups.get(name);
    if (group === undefined) {
      throw new ArgumentError(`No axis is called '${name}': the mesh has ${this.axes.join(", ")}`);
    }
    return group;
  }
}

/** The meshes over each group, by names and lengths of axes. */
const MESHES: WeakMap<ProcessGroup, Map<string, DeviceMesh>> = new WeakMap();

/**
 * Lays a grid over a group. Collective: every rank gives the same shape. A second call with the same group, names and
 * lengths returns the mesh of the first, unless one of its groups was disposed since.
 *
 * @param group all ranks of the grid
 * @param shape length of each axis, outermost first; the product is the group's size
 * @returns the grid; its groups are disposed with `group`
 * @throws {ArgumentError} if the product is another number
 * @example
 * ```ts ignore
 * const mesh = deviceMesh(group, { replicate: 2, shard: 2 });
 * mesh.axis("shard").size; // 2
 * ```
 */
export function deviceMesh(group: ProcessGroup, shape: MeshShape): DeviceMesh {
  const names = Object.keys(shape);
  const lengths = Object.values(shape);
  const text = names.map((name) => `${name}: ${shape[name]}`).join(", ");
  if (names.length === 0 || lengths.some((length) => !Number.isInteger(length) || length < 1)) {
    throw new ArgumentError(`A mesh needs axes of positive length, got { ${text} }`);
  }
  const product = lengths.reduce((all, length) => all * length, 1);
  if (product !== group.size) {
    throw new ArgumentError(
      `A mesh of { ${text} } has ${countOf(product, "rank")}, but group '${group.name}' has ${group.size}`,
    );
  }
  const known = MESHES.get(group) ?? new Map<string, DeviceMesh>();
  MESHES.set(group, known);
  const key = JSON.stringify([names, lengths]);
  const before = known.get(key);
  if (before !== undefined && names.every((axis) => !before.axis(axis).disposed)) return before;
  const groups = new Map<string, ProcessGroup>();
  const mesh = new DeviceMesh(group, shape, groups);
  // If a later group cannot be made, those made before are disposed.
  using made = new DisposableStack();
  let stride = group.size;
  for (const [i, axis] of names.entries()) {
    const length = at(lengths, i, "axis");
    stride /= length;
    const first = group.rank - at(mesh.coordinate, i, "axis") * stride;
    const line = Array.from({ length }, (_, place) => first + place * stride);
    // An axis over all ranks is the group itself, and takes no memory.
    groups.set(axis, length === group.size ? group : made.use(group.split(line, axis, { mesh, axis })));
  }
  made.move();
  known.set(key, mesh);
  return mesh;
}
