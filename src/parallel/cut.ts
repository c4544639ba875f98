/**
 * Parameters become the local parts of global tensors, all of a call or none. Which modules compute with parts, and what they add
 * up over the axis, is left to others.
 *
 * @module
 */
import type { DeviceMesh } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { ArgumentError } from "../errors.ts";
import { chunkRange, type CutRule, type Placement, type PlacementAxis } from "../tensor/cut.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { takeAll, unwind } from "../unwind.ts";
import { normReducerOf } from "./norm.ts";
import { requireOneAxis } from "./ranks.ts";

/**
 * Cuts parameters over an axis: each rank of it keeps one part, and the parameter has that part's shape from then on. Collective over
 * the axis, with equal rules on all ranks. Cut first, then shard over other axes of the mesh, and initialize or load last: values are
 * the global tensor's, on any axes.
 *
 * @param axis an axis of a mesh
 * @param rules which dim of each parameter is cut
 * @returns undoes it, as long as the parameters are plain and have no values
 * @throws {ArgumentError} if a parameter cannot be cut so, naming it, or ranks gave other rules; none is cut then
 * @example
 * ```ts
 * import { launch } from "fullyshard";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * import { cutParameters } from "fullyshard/comm";
 * await using run = await launch({ axes: { shard: 1, tensor: 1 } });
 * const layer = new Linear(run.device, 8, 6, { bias: false });
 * cutParameters(run.mesh.get("tensor"), new Map([[layer.weight, { dim: 0 }]])); // over 2 ranks: [3, 8] on each
 * initializeParameters(layer, 0);
 * if (layer.weight.globalShape.join() !== "6,8") throw new Error("another tensor");
 * ```
 */
export function cutParameters(axis: DeviceMesh, rules: ReadonlyMap<Parameter, CutRule>): () => void {
  const name = requireOneAxis(axis, "cut");
  const { group } = axis;
  const over = placementAxis(group, name);
  const placed = group.agree(`cut over axis '${name}'`, () =>
    [...rules].map(([parameter, rule]) => {
      const placement: Placement = { dim: rule.dim, packs: rule.packs ?? 1, axis: over };
      requireCut(parameter, placement);
      return { parameter, placement, before: parameter.placements };
    }));
  requireSameRules(
    group,
    placed.map(({ parameter: { fqn, globalShape }, placement: { dim, packs } }) =>
      `'${fqn}' [${globalShape.join(", ")}] by dim ${dim}${packs === 1 ? "" : ` in ${packs} packs`}`
    ),
  );
  const done: typeof placed = [];
  const steps = (): (() => void)[] => {
    return done.splice(0).toReversed().map(({ parameter, before }) => () => parameter.place(before));
  };
  try {
    for (const cut of placed) {
      cut.parameter.place([...cut.before, cut.placement]);
      done.push(cut);
    }
  } catch (error) {
    unwind(steps());
    throw error;
  }
  return () => takeAll(steps());
}

/** A group as placements know it. */
export function placementAxis(group: ProcessGroup, name: string): PlacementAxis {
  const { rank, size, worldRanks } = group;
  return { name, rank, size, worldRanks, normReducer: normReducerOf(group) };
}

/** Refuses a cut that leaves a rank of the axis without elements, or that the parameter is in no state for. */
function requireCut(parameter: Parameter, { dim, packs, axis: { name, size, worldRanks } }: Placement): void {
  const { fqn, shape } = parameter;
  const what = `Cannot cut '${fqn}' [${shape.join(", ")}] by dim ${dim} over axis '${name}' of ${size} ranks`;
  const refuse = (why: string): never => {
    throw new ArgumentError(`${what}: ${why}`);
  };
  parameter.requirePlain("cut");
  if (parameter.storage.hasValues()) refuse("it has values; cut it before it is initialized or loaded");
  const length = shape[dim];
  if (length === undefined || !Number.isInteger(packs) || packs < 1) {
    return refuse(`give a dim from 0 to ${shape.length - 1}, and packs from 1, got ${packs}`);
  }
  if (length % packs !== 0) refuse(`${length} is no multiple of ${packs} packs`);
  const last = chunkRange(length / packs, size - 1, size);
  if (last.length === 0) refuse("its last ranks would have nothing; give a shorter axis");
  for (const { axis } of parameter.placements) {
    if (axis.worldRanks.filter((rank) => worldRanks.includes(rank)).length === 1) continue;
    refuse(`it is cut over axis '${axis.name}' already, which has some of these ranks too`);
  }
}

function requireSameRules(group: ProcessGroup, rules: readonly string[]): void {
  const [own, ...others] = [rules.join("; "), ...group.exchangeText(rules.join("; "), "rules of cuts")];
  const other = others.findIndex((text) => text !== own);
  if (other < 0) return;
  throw new ArgumentError(
    `Ranks must cut the same parameters in the same order: rank ${group.worldRanks[other]} gave ${
      others[other]
    }, and rank ` +
      `${group.worldRanks[group.rank]} ${own}`,
  );
}
