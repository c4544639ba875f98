/**
 * Named axes over the ranks of a group: a grid in row-major order (PyTorch's `DeviceMesh`). An axis is a mesh of its own, which
 * knows the whole grid: which ranks differ on the axis, and which on the other axes. The mesh gives axes no meaning.
 *
 * Note [One communicator for equal ranks]: ranks may be in few groups at once, and each group has memory of its own. So axes that
 * join the same ranks share one group, in one mesh or in several over the same ranks, and an axis over all ranks has the
 * mesh's own group. Two axes whose ranks are equal for one rank are equal for all, as each axis divides the ranks into parts that
 * are moved copies of one part.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { countOf, valueText } from "../words.ts";
import { ProcessGroup } from "./process_group.ts";

/** Length of each axis, outermost first, e.g. `{ replicate: 2, shard: 4 }`. */
export type MeshShape = Readonly<Record<string, number>>;

/** An axis of a mesh with several axes. */
export interface MeshAxis {
  /** The mesh. */
  readonly mesh: DeviceMesh;
  /** Name of the axis. */
  readonly axis: string;
}

/** A dim of the grid. */
interface GridDim {
  readonly length: number;
  /** Ranks from one place to the next. */
  readonly stride: number;
}

/** A named axis: one dim of the grid, or several that were flattened, outermost first. */
interface NamedAxis {
  readonly name: string;
  readonly dims: readonly GridDim[];
}

/** A full grid, and the state that its meshes share. */
interface Grid {
  readonly group: ProcessGroup;
  readonly axes: readonly NamedAxis[];
  /** Axes that were flattened, by name. */
  readonly flattened: Map<string, NamedAxis>;
  /** Meshes that were handed out, by the names of their axes. */
  readonly meshes: Map<string, DeviceMesh>;
  /** Groups that were made or found, by their ranks. */
  readonly groups: Map<string, ProcessGroup>;
}

function layGrid(group: ProcessGroup, shape: MeshShape): Grid {
  let stride = group.size;
  const axes = Object.entries(shape).map(([name, length]): NamedAxis => {
    stride /= length;
    return { name, dims: [{ length, stride }] };
  });
  return { group, axes, flattened: new Map(), meshes: new Map(), groups: new Map() };
}

/** The ranks that differ from a rank in some dims only, row-major. */
function lineOf(rank: number, dims: readonly GridDim[]): readonly number[] {
  const first = dims.reduce((rest, dim) => rest - placeOn(rank, dim) * dim.stride, rank);
  return dims.reduce<readonly number[]>(
    (line, { length, stride }) => line.flatMap((begin) => Array.from({ length }, (_, place) => begin + place * stride)),
    [first],
  );
}

/** A rank's place in a dim. */
function placeOn(rank: number, { length, stride }: GridDim): number {
  return Math.floor(rank / stride) % length;
}

/** Groups of some of the ranks of a group, by these ranks. See Note [One communicator for equal ranks]. */
const COMMUNICATORS: WeakMap<ProcessGroup, Map<string, ProcessGroup>> = new WeakMap();

/** A grid of ranks, or some axes of one. Made by {@link deviceMesh}. */
export class DeviceMesh {
  /** Names of the axes, outermost first. */
  readonly axes: readonly string[];
  /** Lengths of the axes. */
  readonly shape: readonly number[];
  /** This rank's place on each axis. */
  readonly coordinate: readonly number[];
  readonly #grid: Grid;
  readonly #axes: readonly NamedAxis[];

  private constructor(grid: Grid, axes: readonly NamedAxis[]) {
    this.#grid = grid;
    this.#axes = axes;
    this.axes = axes.map(({ name }) => name);
    this.shape = axes.map(({ dims }) => dims.reduce((all, { length }) => all * length, 1));
    const { rank } = grid.group;
    this.coordinate = axes.map(({ dims }) => dims.reduce((place, dim) => place * dim.length + placeOn(rank, dim), 0));
  }

  /**
   * Use {@link deviceMesh}, which checks the shape and gives equal meshes once.
   *
   * @internal
   */
  static lay(group: ProcessGroup, shape: MeshShape): DeviceMesh {
    const grid = layGrid(group, shape);
    const mesh = meshOf(grid, grid.axes, () => new DeviceMesh(grid, grid.axes));
    // If a later group cannot be made, the groups made before are disposed.
    using made = new DisposableStack();
    for (const { name, dims } of grid.axes) {
      const { group: ours, isNew } = mesh.#groupOver(dims, name);
      if (isNew) made.use(ours);
    }
    made.move();
    return mesh;
  }

  /** True if none of its grid's groups was disposed. */
  get isOpen(): boolean {
    return [...this.#grid.groups.values()].every(({ disposed }) => !disposed);
  }

  /**
   * The ranks of the mesh: of some axes of a grid, those that differ from this rank on these axes only. Where several axes were
   * sliced and no group has their ranks yet, the first access makes one: every rank must ask for it.
   */
  get group(): ProcessGroup {
    return this.#groupOver(this.#axes.flatMap(({ dims }) => dims), this.axes.join("_")).group;
  }

  /** The mesh of all axes of the grid; this mesh itself if it has all axes. */
  get root(): DeviceMesh {
    return this.#meshOf(this.#grid.axes);
  }

  /** The group of the ranks that differ from this one on axis `name` only. @throws {ArgumentError} if there is no such axis */
  axis(name: string): ProcessGroup {
    return this.get(name).group;
  }

  /**
   * One axis as a mesh of its own (PyTorch's `mesh["tensor"]`), also one that {@link flatten} has made of this mesh's grid.
   *
   * @throws {ArgumentError} if there is no such axis
   */
  get(name: string): DeviceMesh {
    return this.#meshOf([this.#find(name)]);
  }

  /**
   * Some axes as a mesh (PyTorch's `mesh["replicate", "shard"]`). Two slices of the same axes are one mesh.
   *
   * @param names axes of the mesh, or ones that {@link flatten} has made, outermost first, as they lie in the grid
   * @throws {ArgumentError} if there is no such axis, two of them share a dim of the grid, or they are in another order
   * @example
   * ```ts ignore
   * const mesh = deviceMesh(group, { replicate: 2, shard: 2, tensor: 2 });
   * fullyShard(model, { mesh: mesh.slice(["replicate", "shard"]) });
   * ```
   */
  slice(names: readonly string[]): DeviceMesh {
    return this.#meshOf(this.#inOrder(names, "slice"));
  }

  /**
   * Several axes as one, in row-major order (PyTorch's `mesh["dp_shard", "cp"]._flatten("dp_shard_cp")`). Collective: it makes the
   * axis' group, unless a group has these ranks. The same call again gives the same mesh.
   *
   * @param names axes of the mesh, outermost first, as they lie in the grid
   * @param name of the new axis; any mesh of the grid finds it by {@link get} and {@link slice}
   * @throws {ArgumentError} if the name is taken, or as {@link slice}
   * @example
   * ```ts ignore
   * const mesh = deviceMesh(group, { dp_shard: 2, cp: 2, tp: 2 });
   * fullyShard(model, { mesh: mesh.flatten(["dp_shard", "cp"], "dp_shard_cp") }); // over 4 ranks
   * ```
   */
  flatten(names: readonly string[], name: string): DeviceMesh {
    const dims = this.#inOrder(names, "flatten").flatMap((axis) => axis.dims);
    requireName(name);
    const { axes, flattened } = this.#grid;
    const before = axes.find((axis) => axis.name === name) ?? flattened.get(name);
    const isSame = before?.dims.length === dims.length && before.dims.every((dim, i) => dim === dims[i]);
    if (before !== undefined && !isSame) {
      throw new ArgumentError(
        `Cannot flatten ${names.join(" × ")} to '${name}': the mesh has another axis of that name; give a new name`,
      );
    }
    const axis = before ?? { name, dims };
    void this.#groupOver(dims, name); // where it cannot be made, the name stays free
    if (before === undefined) flattened.set(name, axis);
    return this.#meshOf([axis]);
  }

  /** Axes by their names, which must be in the order of the grid. */
  #inOrder(names: readonly string[], what: "slice" | "flatten"): readonly NamedAxis[] {
    const axes = names.map((name) => this.#find(name));
    const refuse = (why: string): never => {
      throw new ArgumentError(`Cannot ${what} ${names.length === 0 ? "nothing" : names.join(" × ")}: ${why}`);
    };
    if (axes.length === 0) refuse(`name some of ${this.axes.join(", ")}`);
    const strides = axes.flatMap(({ dims }) => dims);
    if (new Set(strides).size < strides.length) refuse("an axis is named twice, or lies in another that was flattened");
    const places = strides.map((dim) => this.#grid.axes.findIndex(({ dims }) => dims[0] === dim));
    if (places.some((place, i) => place < (places[i - 1] ?? 0))) {
      refuse(`give axes outermost first, as the mesh has them: ${this.#grid.axes.map(({ name }) => name).join(", ")}`);
    }
    return axes;
  }

  /** An axis by its name. @throws {ArgumentError} if there is none */
  #find(name: string): NamedAxis {
    const { flattened } = this.#grid;
    const axis = this.#axes.find((one) => one.name === name) ?? flattened.get(name);
    if (axis !== undefined) return axis;
    const names = [...this.axes, ...flattened.keys()].join(", ");
    throw new ArgumentError(`No axis is called '${name}': the mesh has ${names}`);
  }

  #meshOf(axes: readonly NamedAxis[]): DeviceMesh {
    return meshOf(this.#grid, axes, () => new DeviceMesh(this.#grid, axes));
  }

  /** The group of the ranks that differ from this one in some dims only. Collective where there is none yet. */
  #groupOver(dims: readonly GridDim[], name: string): { readonly group: ProcessGroup; readonly isNew: boolean } {
    const { group, groups, axes } = this.#grid;
    const ranks = lineOf(group.rank, dims);
    const key = ranks.join();
    // Of a mesh of one axis all ranks are the world, and messages say so.
    const named = (ours: ProcessGroup): ProcessGroup => {
      if (axes.length > 1 && ranks.length > 1) ours.nameAxis(name);
      return ours;
    };
    const held = groups.get(key);
    if (held !== undefined) return { group: named(held), isNew: false };
    const before = ranks.length === group.size ? group : COMMUNICATORS.get(group)?.get(key);
    const isNew = before === undefined || before.disposed;
    const ours = isNew ? group.split(ranks, name, { mesh: this.root, axis: name }) : before;
    groups.set(key, ours);
    if (isNew) COMMUNICATORS.set(group, (COMMUNICATORS.get(group) ?? new Map()).set(key, ours));
    return { group: named(ours), isNew };
  }
}

/** The mesh of some axes of a grid, which is made once. */
function meshOf(grid: Grid, axes: readonly NamedAxis[], make: () => DeviceMesh): DeviceMesh {
  const key = JSON.stringify(axes.map(({ name }) => name));
  const mesh = grid.meshes.get(key) ?? make();
  grid.meshes.set(key, mesh);
  return mesh;
}

/** @throws {ArgumentError} for a name that is no word */
function requireName(name: string): void {
  if (/^[a-z_]\w*$/i.test(name)) return;
  throw new ArgumentError(`An axis cannot be called '${name}': give a word of letters, digits and _`);
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
 * @throws {ArgumentError} if the product is another number, or a name is no word
 * @example
 * ```ts ignore
 * const mesh = deviceMesh(group, { replicate: 2, shard: 2 });
 * mesh.axis("shard").size; // 2
 * ```
 */
export function deviceMesh(group: ProcessGroup, shape: MeshShape): DeviceMesh {
  if (!(group instanceof ProcessGroup) || typeof shape !== "object" || shape === null) {
    throw new ArgumentError(
      `Cannot make a mesh of ${valueText(group)} and ${
        valueText(shape)
      }: expected a ProcessGroup and lengths of axes, ` +
        "e.g. deviceMesh(run.group, { replicate: 2, shard: 2 })",
    );
  }
  const names = Object.keys(shape);
  const lengths = Object.values(shape);
  const text = names.map((name) => `${name}: ${shape[name]}`).join(", ");
  if (names.length === 0 || lengths.some((length) => !Number.isInteger(length) || length < 1)) {
    throw new ArgumentError(`A mesh needs axes of positive length, got { ${text} }`);
  }
  for (const name of names) requireName(name);
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
  if (before?.isOpen === true) return before;
  const mesh = DeviceMesh.lay(group, shape);
  known.set(key, mesh);
  return mesh;
}
