/**
 * Routers against plain loops over the experts of a token, their gradient against central differences.
 *
 * @module
 */
import assert from "node:assert/strict";
import { float32, int32 } from "../../../src/dtype.ts";
import type { Scoring } from "../../../src/device/kernels/signature.ts";
import { byRow, type Cases, type CasesOf, each, eachFloat, fround, gradient, pick, type Properties } from "./case.ts";
import { softmaxRow } from "../../support/reference.ts";
import { TIES } from "./topk.ts";

interface Routing {
  readonly experts: number;
  readonly topK: number;
  readonly scoring: Scoring;
  readonly normalize?: boolean;
  readonly scale?: number;
  readonly groups?: number;
  readonly topGroups?: number;
  readonly groupBest?: 1 | 2;
  readonly bias?: boolean;
  /** True if experts are drawn by noise. */
  readonly drawn?: boolean;
}

const ROUTINGS: readonly Routing[] = [
  { experts: 1, topK: 1, scoring: "softmax", normalize: true },
  { experts: 4, topK: 2, scoring: "softmax" },
  { experts: 7, topK: 7, scoring: "softmax", normalize: true, scale: 2.5 },
  { experts: 19, topK: 3, scoring: "softmax", normalize: true },
  { experts: 12, topK: 3, scoring: "softmax", groups: 4, topGroups: 2, groupBest: 1, scale: 0.5 },
  { experts: 8, topK: 3, scoring: "sigmoid", bias: true },
  { experts: 16, topK: 4, scoring: "sigmoid", bias: true, normalize: true, scale: 1.5 },
  { experts: 16, topK: 5, scoring: "sigmoid", bias: true, normalize: true, groups: 4, topGroups: 2, groupBest: 2 },
  { experts: 6, topK: 2, scoring: "softmaxOfTop" },
  { experts: 9, topK: 4, scoring: "softmaxOfTop", normalize: true, scale: 3 },
  { experts: 4, topK: 2, scoring: "sparseMixer" },
  { experts: 17, topK: 2, scoring: "sparseMixer", scale: 2 },
  { experts: 17, topK: 2, scoring: "sparseMixer", scale: 2, drawn: true },
  { experts: 5, topK: 2, scoring: "sparseMixer", drawn: true },
];
const [ROWS, JITTER] = [3, 0.19];

/** Logits without equals in a row, exact in every dtype. */
function logitsOf({ experts }: Routing): number[] {
  return each(ROWS * experts, (i) => ((i % experts * 7 + Math.floor(i / experts) * 3) % 23 - 11) / 8);
}

/** Places of the largest, best first. */
function largest(values: readonly number[], count: number): number[] {
  return each(values.length, (i) => i).sort((i, j) => pick(values, j) - pick(values, i)).slice(0, count);
}

/** Shares of experts that are nearly as good as the best but those taken. */
function mixed(row: readonly number[], taken: readonly number[]): { readonly best: number; readonly shares: number[] } {
  const left = row.map((s, i) => taken.includes(i) ? -Infinity : s);
  const top = Math.max(...left);
  const near = left.map((s, i) =>
    (top - pick(row, i)) / Math.max(Math.abs(pick(row, i)), top) > 2 * JITTER ? -Infinity : s
  );
  return { best: left.indexOf(top), shares: softmaxRow(near) };
}

/** The best expert that is not taken, or the one that noise draws. */
function mixedBest(row: readonly number[], taken: readonly number[], noise: readonly number[]): number {
  const { best, shares } = mixed(row, taken);
  if (noise.length === 0) return best;
  const sums = row.map((s, i) => pick(shares, i) === 0 ? -Infinity : s - Math.log(-Math.log(pick(noise, i))));
  return sums.indexOf(Math.max(...sums));
}

/** The factor on the weights of drawn experts. */
function drawnParts(
  row: readonly number[],
  { experts }: Routing,
  chosen: readonly number[],
  noise: readonly number[],
): number[] {
  return chosen.map((expert, j) => {
    const isWhole = noise.length === 0 || mixed(row, chosen.slice(0, j)).best === expert;
    return isWhole || pick(noise, (2 * j + 1) * experts) > 0.75 ? 1 : 0.3333;
  });
}

/** Numbers in (0, 1) for one row. */
function noiseOf({ experts, topK, drawn = false }: Routing, r: number): number[] {
  return drawn ? each(topK * 2 * experts, (i) => fround(((i * 37 + r * 11) % 101 + 0.5) / 101)) : [];
}

/** The experts that a row of logits chooses. */
function chosenBy(
  row: readonly number[],
  routing: Routing,
  bias: readonly number[],
  noise: readonly number[],
): number[] {
  const { experts, topK, scoring, groups = 1, topGroups = 1, groupBest = 1 } = routing;
  if (scoring === "sparseMixer") {
    return each(topK, (j) => j).reduce<number[]>(
      (taken, j) => [...taken, mixedBest(row, taken, noise.slice(2 * j * experts))],
      [],
    );
  }
  const keys = scoresOf(row, scoring).map((score, i) => score + (bias[i] ?? 0));
  const size = experts / groups;
  const sums = each(groups, (g) => {
    const own = keys.slice(g * size, (g + 1) * size);
    return largest(own, groupBest).reduce((total, i) => total + pick(own, i), 0);
  });
  const kept = largest(sums, topGroups);
  return largest(keys.map((key, i) => kept.includes(Math.floor(i / size)) ? key : -Infinity), topK);
}

function scoresOf(row: readonly number[], scoring: Scoring): number[] {
  return scoring === "softmax" ? softmaxRow(row) : row.map((v) => scoring === "sigmoid" ? 1 / (1 + Math.exp(-v)) : v);
}

/** Weights of the chosen experts. */
function weightsOf(row: readonly number[], routing: Routing, chosen: readonly number[]): number[] {
  const { scoring, normalize = false, scale = 1 } = routing;
  const scores = scoresOf(row, scoring);
  const weights = scoring === "sparseMixer"
    ? chosen.map((expert, j) => pick(mixed(row, chosen.slice(0, j)).shares, expert))
    : chosen.map((expert) => pick(scores, expert));
  const shares = scoring === "softmaxOfTop" ? softmaxRow(weights) : weights;
  const total = normalize ? shares.reduce((all, weight) => all + weight, 0) : 1;
  return shares.map((weight) => weight / total * scale);
}

const DEFAULTS = { normalize: false, scale: 1, groups: 1, topGroups: 1, groupBest: 1 } as const;

/** A bias that turns the order. */
function biasOf({ experts, bias = false }: Routing): number[] {
  return bias ? each(experts, (i) => fround((i * 5 % experts) / experts)) : [];
}

const route: CasesOf<"route"> = eachFloat((dtype) =>
  ROUTINGS.map((routing) => {
    const [logits, bias] = [logitsOf(routing), biasOf(routing)];
    const { bias: isBiased = false, drawn = false, ...args } = { ...DEFAULTS, ...routing };
    const noise = Array.from({ length: ROWS }, (_, r) => noiseOf(routing, r));
    const chosen = byRow(logits, routing.experts, (row, r) => chosenBy(row, routing, bias, noise[r] ?? []));
    const weights = byRow(logits, routing.experts, (row, r) => {
      const own = chosen.slice(r * routing.topK, (r + 1) * routing.topK);
      const parts = drawnParts(row, routing, own, noise[r] ?? []);
      return weightsOf(row, routing, own).map((weight, j) => weight * pick(parts, j));
    });
    return {
      args: { dtype, rows: ROWS, jitter: JITTER, ...args },
      arrays: { logits, ...isBiased ? { bias } : {}, ...drawn ? { noise: noise.flat() } : {} },
      without: [...isBiased ? [] : ["bias"] as const, ...drawn ? [] : ["noise"] as const],
      expect: () => ({ weights: { values: weights, relative: 1e-6 }, chosen: { values: chosen } }),
    };
  })
);

const routeBackward: CasesOf<"routeBackward"> = eachFloat((dtype, epsilon) =>
  ROUTINGS.map((routing) => {
    const { experts, topK, scoring, normalize = false, scale = 1 } = routing;
    const logits = logitsOf(routing);
    const chosen = byRow(logits, experts, (row, r) => chosenBy(row, routing, biasOf(routing), noiseOf(routing, r)));
    return {
      args: { dtype, scoring, rows: ROWS, experts, topK, normalize, scale, jitter: JITTER },
      arrays: { logits, chosen },
      expect: (before) => {
        const dweights = before("dweights");
        // The weights of all experts, those that are not chosen none: so outputs are as many as logits.
        const values = byRow(logits, experts, (row, r) => {
          const own = chosen.slice(r * topK, (r + 1) * topK);
          const spread = (list: readonly number[]): number[] => {
            return own.reduce((row, expert, j) => row.with(expert, pick(list, j)), each(experts, () => 0));
          };
          const dy = spread(dweights.slice(r * topK, (r + 1) * topK));
          return gradient(row, dy, experts, (moved) => spread(weightsOf(moved, routing, own)));
        });
        return { dlogits: { values, relative: epsilon + 1e-6, absolute: 1e-7 } };
      },
    };
  })
);

/** Cases of routers. */
export const ROUTER_CASES: Cases<"route" | "routeBackward"> = { route, routeBackward };

/** Further tests of kernels of mixtures of experts. */
export const ROUTER_PROPERTIES: Properties = {
  "route() chooses of equal scores as torch.topk does": (bed) => {
    for (const [experts, topK, modulus, places] of TIES) {
      const logits = bed.put(float32, each(experts, (i) => (i * i * 7 + i) % modulus));
      const [weights, chosen] = [bed.room(float32, topK), bed.room(int32, topK)];
      bed.device.kernels.route({
        ...{ dtype: float32, scoring: "softmaxOfTop", rows: 1, experts, topK, jitter: 0, ...DEFAULTS },
        ...{ weights, chosen, logits },
      });
      assert.deepEqual(bed.get(int32, chosen, topK), places, `${topK} of ${experts}`);
    }
  },
  "route() gives a NaN to the experts that have one": (bed) => {
    const logits = bed.put(float32, [0, NaN, 1, 2]);
    for (const scoring of ["softmax", "sigmoid", "softmaxOfTop", "sparseMixer"] as const) {
      const [weights, chosen] = [bed.room(float32, 2), bed.room(int32, 2)];
      const args = { dtype: float32, scoring, rows: 1, experts: 4, topK: 2, jitter: 0, ...DEFAULTS };
      bed.device.kernels.route({ ...args, weights, chosen, logits });
      const [first = 0, second = 0] = bed.get(int32, chosen, 2);
      assert.ok(first !== second && first < 4 && second < 4, scoring);
      assert.ok(Number.isNaN(bed.get(float32, weights, 1)[0]), scoring);
    }
  },
};
