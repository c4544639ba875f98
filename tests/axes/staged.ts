/** Trainings in stages, and what of their reports must be one rank's. @module */
import assert from "node:assert/strict";
import { bitFaults, distanceOf } from "../../scripts/axes/distance.ts";
import type { FamilyOrders, FamilyReport } from "../../scripts/axes/training.ts";
import { valuesOf, world } from "../support/world.ts";
import { trainFamily } from "./pipeline_ranks.ts";

/** Ranks of a mesh. */
export const sizeOf = ({ axes }: Pick<FamilyOrders, "axes">): number =>
  Object.values(axes).reduce((all, length) => all * length, 1);

/** Trains a family over axes. */
export async function train(orders: FamilyOrders): Promise<readonly FamilyReport[]> {
  return valuesOf<FamilyReport>(await world(sizeOf(orders), trainFamily, { data: orders }));
}

/** Fails unless ranks have what one rank has, within rounding, and each other's bits. */
export function assertAsAlone(all: readonly FamilyReport[], alone: FamilyReport, where: string): void {
  assert.deepEqual(bitFaults(all, alone, 1), [], where);
  const { loss, norm, gradient, worst } = distanceOf(all, alone);
  assert.ok(loss <= 1 && norm <= 1 && gradient <= 1, `${where}: ${JSON.stringify({ loss, norm, gradient, worst })}`);
}

/** What must be the same to the bit where all sums have one order. */
export function bitsOf({ losses, norms, last }: FamilyReport): Pick<FamilyReport, "losses" | "norms" | "last"> {
  return { losses, norms, last };
}

/** A mesh, and its stages. */
export type Laid = Pick<FamilyOrders, "axes" | "stages" | "mode">;

/** One rank, which takes as many micro-batches. */
export const ALONE: Laid = { axes: { shard: 1 }, stages: {} };
