/**
 * The axes of a run by name, and the data of ranks that differ on an axis: other samples, other positions, or the same data.
 *
 * @module
 */
import type { DeviceMesh, MeshShape } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { didYouMean } from "../config/nearest.ts";
import { ArgumentError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { Parameter } from "../tensor/parameter.ts";

/** The data of ranks that differ on an axis: other samples, other positions of the same samples, or the same data. */
type AxisData = "samples" | "positions" | "the same";

/** Names of axes; PyTorch's and torchtitan's are known beside the library's own. */
const AXES: Readonly<Record<string, AxisData>> = {
  replicate: "samples",
  shard: "samples",
  dp: "samples",
  dp_replicate: "samples",
  dp_shard: "samples",
  expert: "samples",
  ep: "samples",
  context: "positions",
  cp: "positions",
  pipeline: "the same",
  pp: "the same",
  tensor: "the same",
  tp: "the same",
};

/** A rank's place among the ranks that read different samples. */
export interface SamplePart {
  /** This rank's place. */
  readonly rank: number;
  /** The number of ranks that read different samples. */
  readonly size: number;
}

/**
 * The axes of a run: the given axes. One axis may have the length -1, for all remaining ranks. If none of them carries samples, an axis
 * `shard` of one rank comes first.
 *
 * @throws {ArgumentError} if nothing is known of an axis, with the nearest name, or the others leave no whole number
 */
export function runAxes(given: MeshShape, size: number): MeshShape {
  const shape = withRest(given, size);
  const known = Object.keys(AXES);
  for (const name of Object.keys(shape)) {
    if (AXES[name] !== undefined) continue;
    throw new ArgumentError(
      `A run has no axis '${name}': there are ${known.join(", ")}${
        didYouMean(name, known)
      }; for other names lay a mesh of your ` +
        "own with deviceMesh(run.group, …)",
    );
  }
  return Object.keys(shape).some((name) => AXES[name] === "samples") ? shape : { shard: 1, ...shape };
}

/** Replaces the length -1 of an axis by the number of ranks that the other axes leave. */
function withRest(shape: MeshShape, size: number): MeshShape {
  const open = Object.keys(shape).filter((name) => shape[name] === -1);
  const [name] = open;
  if (name === undefined) return shape;
  const others = Object.values(shape).reduce((all, length) => length === -1 ? all : all * length, 1);
  if (open.length > 1 || !Number.isInteger(size / others)) {
    const text = Object.entries(shape).map(([axis, length]) => `${axis}: ${length}`).join(", ");
    throw new ArgumentError(
      `Axes { ${text} } leave no whole number of ${size} ranks to one axis of -1: give lengths whose product divides ${size}`,
    );
  }
  return { ...shape, [name]: size / others };
}

/** The ranks whose losses, tokens and gradients are added: those that read other samples or other positions. */
export function dataRanksOf(mesh: DeviceMesh): ProcessGroup {
  return mesh.slice(mesh.axes.filter((name) => AXES[name] !== "the same")).group;
}

/** This rank's part of the samples; all of a row's positions. */
export function samplePartOf(mesh: DeviceMesh): SamplePart {
  const part = { rank: 0, size: 1 };
  for (const [i, name] of mesh.axes.entries()) {
    const [length = NaN, place = NaN] = [mesh.shape[i], mesh.coordinate[i]];
    if (AXES[name] !== "samples") continue;
    part.rank = part.rank * length + place;
    part.size *= length;
  }
  return part;
}

/**
 * Refuses a model whose positions are shared by other ranks than those of the run's axis that carries positions.
 *
 * @param what the action in the error's text
 * @throws {ArgumentError} naming both lists of ranks
 */
export function requirePositionRanks(what: string, { positions }: Pick<CausalLm, "positions">, mesh: DeviceMesh): void {
  const axes = mesh.axes.filter((name) => AXES[name] === "positions");
  const wanted = axes.length === 0 ? [] : mesh.slice(axes).group.worldRanks;
  const [expected, found] = [wanted, positions?.worldRanks ?? []].map((ranks) =>
    ranks.length > 1 ? `ranks ${ranks.join(", ")}` : "no ranks"
  );
  if (expected === found) return;
  throw new ArgumentError(
    `Cannot ${what}: ${expected} of the run are to share the positions of rows (axis 'context' or 'cp'), and the model's are shared ` +
      `by ${found}; call parallelizeContext(model, axis) with that axis of the run's mesh, and with no other`,
  );
}

/**
 * Refuses a model whose stages are not those of the run's axis of stages.
 *
 * @param what the action in the error's text
 * @throws {ArgumentError} naming both lists of ranks
 */
export function requireStageRanks(what: string, { pipeline }: Pick<CausalLm, "pipeline">, mesh: DeviceMesh): void {
  const axes = mesh.axes.filter((name) => name === "pipeline" || name === "pp");
  const wanted = axes.length === 0 ? [] : mesh.slice(axes).group.worldRanks;
  const [expected, found] = [wanted, pipeline?.group.worldRanks ?? []].map((ranks) =>
    ranks.length > 1 ? `ranks ${ranks.join(", ")}` : "no ranks"
  );
  if (expected === found) return;
  throw new ArgumentError(
    `Cannot ${what}: ${expected} of the run are to have stages of the model (axis 'pipeline' or 'pp'), and ${found} have; call ` +
      "parallelizePipeline(model, axis) with that axis of the run's mesh, and with no other",
  );
}

/**
 * Refuses parameters whose gradients are summed over other ranks than the loss. They would be too large or too small by a factor, which
 * an adaptive optimizer would hide. Of experts that a data axis divides, each rank's gradient is of the tokens of all ranks of the axis.
 *
 * @param data the ranks over which the loss is summed
 * @throws {ArgumentError} naming the parameter and both lists of ranks
 */
export function requireReducedOver(parameters: readonly Parameter[], data: ProcessGroup): void {
  const textOf = (ranks: readonly number[]): string => [...ranks].sort((a, b) => a - b).join(", ");
  const expected = textOf(data.worldRanks);
  const seen = new Set<string>();
  for (const { fqn, requiresGrad, placements, storage: { reducer } } of parameters) {
    if (reducer === undefined || !requiresGrad) continue;
    const divided = placements.map(({ axis }) => axis).filter(({ worldRanks }) => isWithin(worldRanks, data));
    const found = [reducer, ...divided].map(({ worldRanks }) => textOf(worldRanks)).join(" by ");
    if (seen.has(found) || found === expected) continue;
    seen.add(found);
    const count = divided.reduce((all, { size }) => all * size, reducer.worldRanks.length);
    if (divided.length > 0 && count === data.size && isWithin(reducer.worldRanks, data)) continue;
    throw new ArgumentError(
      `Cannot run a backward: the gradient of '${fqn}' is added over ranks ${found}, and the loss over ranks ${expected}; give ` +
        "fullyShard or replicate the axes that carry data (run.mesh.get, slice or flatten), or train over a run of other axes",
    );
  }
}

function isWithin(ranks: readonly number[], { worldRanks }: ProcessGroup): boolean {
  return ranks.every((rank) => worldRanks.includes(rank));
}
