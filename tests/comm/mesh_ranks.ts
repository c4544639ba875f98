/** The ranks' code of the tests of slices and flattened axes. @module */
import { type DeviceMesh, deviceMesh, type MeshShape } from "../../doors/comm.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** A mesh, as a rank sees it. */
export interface MeshView {
  readonly axes: readonly string[];
  readonly shape: readonly number[];
  readonly coordinate: readonly number[];
  /** World ranks of its group. */
  readonly ranks: readonly number[];
  /** Sum of the world's ranks over the group. */
  readonly sum: number | undefined;
}

/** The properties of a grid, as a rank sees them. */
export interface GridReport {
  readonly one: MeshView;
  readonly slice: MeshView;
  readonly flat: MeshView;
  /** Calls that made groups, by the names of these. */
  readonly splits: readonly string[];
  readonly errors: readonly string[];
  /** Facts that must hold. */
  readonly holds: Readonly<Record<string, boolean>>;
}

function viewOf({ axes, shape, coordinate, group }: DeviceMesh, rank: number): MeshView {
  return { axes, shape, coordinate, ranks: group.worldRanks, sum: group.sum([rank], "ranks")[0] };
}

/** Slices and flattens a grid of the axes `dp`, `cp` and `tp`. */
export function cutGrid({ group, rank }: WorldRank, shape: MeshShape): GridReport {
  const splits: string[] = [];
  const end = group.observe(({ kind, unit }) => void (kind === "split" && splits.push(unit)));
  const mesh = deviceMesh(group, shape);
  const [tp, both] = [mesh.get("tp"), mesh.slice(["cp", "tp"])];
  const flat = mesh.flatten(["dp", "cp"], "dp_cp");
  const report = { one: viewOf(tp, rank), slice: viewOf(both, rank), flat: viewOf(flat, rank) };
  const holds = {
    "an axis is one mesh": mesh.get("tp") === tp && both.get("tp") === tp && mesh.slice(["tp"]) === tp,
    "an axis has the group of `axis`": tp.group === mesh.axis("tp"),
    "an axis knows the grid": [tp, both, flat].every(({ root }) => root === mesh) && mesh.root === mesh,
    "a flattened axis is found by its name": mesh.get("dp_cp") === flat && tp.get("dp_cp") === flat,
    "a flattened axis is made once": mesh.flatten(["dp", "cp"], "dp_cp") === flat,
    "the whole flattened has the group of all": mesh.flatten(["dp", "cp", "tp"], "all").group === group,
    "a slice of all axes is the mesh": mesh.slice(mesh.axes) === mesh,
    "a flattened axis is sliced with others": mesh.slice(["dp_cp", "tp"]).group === group,
    "equal ranks have one group": mesh.flatten(["dp", "cp"], "again").group === flat.group &&
      deviceMesh(group, { data: flat.group.size, model: tp.group.size }).axis("model") === tp.group,
  };
  const errors = [
    () => mesh.get("ep"),
    () => both.get("dp"),
    () => mesh.slice(["tp", "dp"]),
    () => mesh.slice(["dp", "dp"]),
    () => mesh.slice([]),
    () => mesh.flatten(["cp", "tp"], "dp_cp"),
    () => mesh.flatten(["cp", "tp"], "dp"),
    () => mesh.flatten(["dp_cp", "cp"], "twice"),
    () => mesh.flatten(["tp", "cp"], "turned"),
    () => mesh.flatten(["cp", "tp"], "no word"),
  ].map((act) => messageOf(act));
  end();
  return { ...report, splits, errors, holds };
}

rankFunctions(import.meta.url, { cutGrid });
