/**
 * The settings that a training may combine without a change of a bit: plan, reshard mode, activation checkpointing, offload and a
 * resume in the middle, each for every precision, number of micro-batches and mesh, with dropout and without. The reference of a group is DDP on as
 * many ranks; HSDP's, which sums in an order of its own, is HSDP with nothing else.
 *
 * @module
 */
import type { ActivationCheckpointingOptions } from "../../mod.ts";
import { SAVEABLE_OPS } from "../../doors/nn.ts";
import type { ParityCase } from "./traces.ts";
import { type Mode, type Offload, PLAN_NAMES, type PlanName, type PrecisionNames } from "./training.ts";

/** One combination: a value of each axis. */
export interface Combination {
  readonly precision: PrecisionNames | undefined;
  /** Ranks that hold copies; the others of the four shard. */
  readonly replicas: 1 | 2;
  /** Micro-batches of a step on each rank. */
  readonly accumulation: 1 | 2;
  readonly mode: Exclude<Mode, "plain">;
  readonly checkpointing: ActivationCheckpointingOptions | undefined;
  readonly offload: Offload | undefined;
  /** The plan of units; undefined: one unit for each block. */
  readonly plan: PlanName | undefined;
  /** True if the run is saved in its middle and a second run continues from there. */
  readonly resumed: boolean;
  /** True if the model uses dropout. */
  readonly dropout: boolean;
}

const WORLD = 4;
const PRECISIONS = [
  undefined,
  { paramDtype: "bfloat16", reduceDtype: "float32" },
  { paramDtype: "float16", reduceDtype: "float32" },
] as const;
const MODES = ["ddp", "fsdp-reshard", "fsdp-keep", "fsdp-partial"] as const;
const CHECKPOINTINGS: readonly Combination["checkpointing"][] = [undefined, {}, { every: 2 }, {
  saveOps: SAVEABLE_OPS,
}];
const OFFLOADS = [undefined, "host", "file"] as const;
const PLANS = [undefined, ...PLAN_NAMES] as const;

/** Replicas are neither offloaded nor sharded; two of two ranks are all. */
function isPossible({ mode, replicas, offload, plan }: Combination): boolean {
  if (mode === "ddp") return replicas === 1 && offload === undefined && plan === undefined;
  return mode !== "fsdp-partial" || replicas === 1;
}

/** Every combination that is possible; the first of its precision, mesh and number of micro-batches is the plainest. */
export function combinations(): readonly Combination[] {
  return PRECISIONS.flatMap((precision) =>
    ([1, 2] as const).flatMap((replicas) =>
      ([1, 2] as const).flatMap((accumulation) =>
        MODES.flatMap((mode) =>
          CHECKPOINTINGS.flatMap((checkpointing) =>
            OFFLOADS.flatMap((offload) =>
              PLANS.flatMap((plan) =>
                [false, true].flatMap((resumed) =>
                  [false, true].map((dropout) => (
                    { precision, replicas, accumulation, mode, checkpointing, offload, plan, resumed, dropout }
                  ))
                )
              )
            )
          )
        )
      )
    )
  ).filter(isPossible);
}

/** Every two values of two axes that a combination has. */
function pairsOf(combination: object): readonly string[] {
  const values = Object.entries(combination).map(([axis, value]) => `${axis} ${JSON.stringify(value)}`);
  return values.flatMap((a, i) => values.slice(i + 1).map((b) => `${a}, ${b}`));
}

/** As few of some combinations as hold every two values that go together in any of them, as far as choosing greedily goes. */
export function pairwise<C extends object>(all: readonly C[]): readonly C[] {
  const candidates = all.map((one) => ({ one, pairs: pairsOf(one) }));
  const missing = new Set(candidates.flatMap(({ pairs }) => pairs));
  const chosen = new Set<C>();
  const gainOf = (pairs: readonly string[]): number => pairs.reduce((n, pair) => missing.has(pair) ? n + 1 : n, 0);
  while (missing.size > 0) {
    let [best, most] = [candidates[0], 0];
    for (const candidate of candidates) {
      const gain = gainOf(candidate.pairs);
      if (gain > most) [best, most] = [candidate, gain];
    }
    if (best === undefined) break;
    chosen.add(best.one);
    for (const pair of best.pairs) missing.delete(pair);
  }
  return all.filter((one) => chosen.has(one));
}

/** Cases of combinations, in groups that must agree; the first is the reference. */
export function axisGroups(steps: number, chosen: readonly Combination[]): readonly (readonly ParityCase[])[] {
  const keyOf = ({ precision, replicas, accumulation, dropout }: Combination): string =>
    JSON.stringify([precision, replicas, accumulation, dropout]);
  const plainest = new Map(combinations().toReversed().map((one) => [keyOf(one), one]));
  return [...Map.groupBy(chosen, keyOf)].map(([key, members]) => {
    const reference = plainest.get(key);
    if (reference === undefined) throw new Error(`no reference of ${key}`);
    const others = members.filter((one) => JSON.stringify(one) !== JSON.stringify(reference));
    return [reference, ...others].map((one) => caseOf(one, steps));
  });
}

function caseOf(combination: Combination, steps: number): ParityCase {
  const { accumulation, ...others } = combination;
  const words = Object.entries(combination).flatMap(([axis, value]) =>
    value === undefined || value === false ? [] : `${axis} ${typeof value === "object" ? JSON.stringify(value) : value}`
  );
  const training = { ...others, tied: true, microBatches: WORLD * accumulation, steps };
  return { name: `axes: ${words.join(", ")}`, ranks: WORLD, training };
}
