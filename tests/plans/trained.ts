/** Trainings by a plan, and what their ranks have together. @module */
import { valuesOf, world } from "../support/world.ts";
import { type PlanCase, type PlanReport, train } from "./plan_ranks.ts";

/** Ranks of most trainings. */
export const WORLD = 2;

/** Trains, and gives what each rank saw. */
export async function run(data: PlanCase, ranks: number = WORLD): Promise<readonly PlanReport[]> {
  return valuesOf(await world<PlanCase, PlanReport>(ranks, train, { data, memoryBytes: 2 ** 25 }));
}

/** Whole weights of the ranks that share a copy. */
export function whole(reports: readonly PlanReport[], shards: number): Record<string, readonly number[]> {
  const [first] = reports;
  const names = Object.keys(first?.weights ?? {});
  const parts = reports.slice(0, shards);
  return Object.fromEntries(names.map((name) => [name, parts.flatMap(({ weights }) => weights[name] ?? [])]));
}
