/**
 * A training on a mesh that begins from first values or from a checkpoint, and may save one: what a rank does.
 *
 * @module
 */
import { createHash } from "node:crypto";
import {
  getModelStateDict,
  getOptimizerStateDict,
  loadCheckpoint,
  saveCheckpoint,
  type StateTensor,
} from "../../doors/checkpoint.ts";
import { AdamW, clipGradNorm, scope } from "../../mod.ts";
import { type AxesRank, batchFor, type FamilyOrders, laidOut } from "../axes/training.ts";

/** A mesh, and the steps that are taken on it. */
export interface MeshOrders extends FamilyOrders {
  /** Folder of a checkpoint to begin from. @default first values */
  readonly from?: string;
  /** Folder to save into after two steps. @default nothing is saved */
  readonly to?: string;
}

/** The result of a training. */
export interface MeshReport {
  /** Digests of all weights, and of all states of the optimizer, as loaded or as saved. */
  readonly weights: string;
  readonly states: string;
  /** Losses and norms of the last two steps. */
  readonly losses: readonly number[];
  readonly norms: readonly number[];
}

/** Steps before and after the save. */
const HALF = 2;

/** A digest of the values of states, by name. */
export function digestOf(states: Iterable<readonly [string, StateTensor]>): string {
  const hash = createHash("sha256");
  for (const [name, { shape, toArray }] of [...states].sort(([a], [b]) => a < b ? -1 : 1)) {
    const values = toArray();
    hash.update(`${name} ${shape}`).update(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
  }
  return hash.digest("hex").slice(0, 16);
}

/** Trains two steps and saves, or loads; then trains two steps more. */
export async function trainOnMesh(rank: AxesRank, orders: MeshOrders): Promise<MeshReport> {
  const { run, model } = await laidOut(rank, orders);
  const { group } = rank;
  const optimizer = new AdamW(model.parameters(), { learningRate: 3e-3, weightDecay: 0.1 });
  const take = (step: number): readonly [loss: number, norm: number] => {
    using _frame = scope();
    optimizer.zeroGrad();
    const loss = run.backward(model, batchFor(run, model, step, orders)).item();
    const norm = clipGradNorm(model.parameters(), 0.1).item();
    optimizer.step();
    return [loss, norm];
  };
  if (orders.from === undefined) { for (let step = 0; step < HALF; step++) take(step); }
  else await loadCheckpoint({ directory: orders.from, model, optimizer, group });
  if (orders.to !== undefined) {
    await saveCheckpoint({ directory: orders.to, step: HALF, model, optimizer, group, state: {} });
  }
  const options = { group, fullStateDict: true };
  const weights = digestOf(getModelStateDict(model, options));
  const states = digestOf(
    [...getOptimizerStateDict(model, optimizer, options).state].flatMap(([fqn, { tensors }]) =>
      [...tensors].map(([name, one]) => [`${fqn}.${name}`, one] as const)
    ),
  );
  const taken = Array.from({ length: HALF }, (_, i) => take(HALF + i));
  return { weights, states, losses: taken.map(([loss]) => loss), norms: taken.map(([, norm]) => norm) };
}
