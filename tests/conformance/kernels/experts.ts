/**
 * Kernels of mixtures of experts against plain loops, the gradient of routers against central differences.
 *
 * @module
 */
import assert from "node:assert/strict";
import { float32, int32 } from "../../../src/dtype.ts";
import type { EXPERT_KERNELS } from "../../../src/device/kernels/experts.ts";
import type { Scoring } from "../../../src/device/kernels/signature.ts";
import { softmaxRow } from "../../support/reference.ts";
import {
  byRow,
  type Cases,
  type CasesOf,
  each,
  eachFloat,
  fround,
  gradient,
  pick,
  type Properties,
  sum,
} from "./case.ts";
import { TIES, topk } from "./topk.ts";

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

/** Which experts a row of logits chooses. */
function chosenBy(row: readonly number[], routing: Routing, bias: readonly number[]): number[] {
  const { experts, topK, scoring, groups = 1, topGroups = 1, groupBest = 1 } = routing;
  if (scoring === "sparseMixer") {
    const { best } = mixed(row, []);
    return [best, mixed(row, [best]).best];
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
    const { bias: isBiased = false, ...args } = { ...DEFAULTS, ...routing };
    const chosen = byRow(logits, routing.experts, (row) => chosenBy(row, routing, bias));
    const weights = byRow(logits, routing.experts, (row, r) => {
      return weightsOf(row, routing, chosen.slice(r * routing.topK, (r + 1) * routing.topK));
    });
    return {
      args: { dtype, rows: ROWS, jitter: JITTER, ...args },
      arrays: isBiased ? { logits, bias } : { logits },
      ...isBiased ? {} : { without: ["bias"] },
      expect: () => ({ weights: { values: weights, relative: 1e-6 }, chosen: { values: chosen } }),
    };
  })
);

const routeBackward: CasesOf<"routeBackward"> = eachFloat((dtype, epsilon) =>
  ROUTINGS.map((routing) => {
    const { experts, topK, scoring, normalize = false, scale = 1 } = routing;
    const logits = logitsOf(routing);
    const chosen = byRow(logits, experts, (row) => chosenBy(row, routing, biasOf(routing)));
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

const sortPairs: CasesOf<"sortPairs"> = [[5, 1], [12, 4], [40, 7], [9, 30]].map(([pairs = 0, experts = 0]) => {
  const chosen = each(pairs, (i) => (i * i + 3) % Math.max(1, experts - 1));
  const order = each(pairs, (i) => i).sort((i, j) => pick(chosen, i) - pick(chosen, j) || i - j);
  return {
    args: { pairs, experts },
    arrays: { chosen },
    expect: () => ({
      places: { values: each(pairs, (i) => order.indexOf(i)) },
      ends: { values: each(experts, (e) => chosen.filter((expert) => expert <= e).length) },
    }),
  };
});

const PAIRS = [[1, 1, 1], [4, 2, 3], [5, 3, 8], [3, 4, 33]] as const;

/** A permutation. */
function placesOf(n: number): number[] {
  return each(n, (i) => n - 1 - i);
}

const combinePairs: CasesOf<"combinePairs"> = eachFloat((dtype, epsilon) =>
  PAIRS.flatMap(([rows, count, cols]) =>
    [true, false].map((weighted) => ({
      args: { dtype, rows, count, cols },
      arrays: { places: placesOf(rows * count) },
      ...weighted ? {} : { without: ["weights"] },
      expect: (before) => {
        const [x, places, weights] = [before("x"), before("places"), weighted ? before("weights") : undefined];
        const values = each(rows * cols, (at) => {
          const [t, c] = [Math.floor(at / cols), at % cols];
          return sum(count, (j) => {
            const pair = t * count + j;
            return (weights === undefined ? 1 : pick(weights, pair)) * pick(x, pick(places, pair) * cols + c);
          });
        });
        return { y: { values, relative: epsilon + 1e-6, absolute: 3e-7 } };
      },
    }))
  )
);

const combinePairsBackward: CasesOf<"combinePairsBackward"> = eachFloat((dtype, epsilon) =>
  PAIRS.flatMap(([rows, count, cols]) =>
    [true, false].map((weighted) => ({
      args: { dtype, rows, count, cols },
      arrays: { places: placesOf(rows * count) },
      ...weighted ? {} : { without: ["weights", "dweights", "x"] },
      expect: (before) => {
        const [dy, places] = [before("dy"), before("places")];
        const dx = each(rows * count * cols, (at) => {
          const pair = places.indexOf(Math.floor(at / cols));
          return (weighted ? pick(before("weights"), pair) : 1) * pick(dy, Math.floor(pair / count) * cols + at % cols);
        });
        const dots = (): number[] =>
          each(rows * count, (pair) =>
            sum(cols, (c) => {
              return pick(dy, Math.floor(pair / count) * cols + c) * pick(before("x"), pick(places, pair) * cols + c);
            }));
        const expected = { dx: { values: dx, relative: epsilon * 1.01 } };
        return weighted ? { ...expected, dweights: { values: dots(), relative: 1e-6, absolute: 1e-7 } } : expected;
      },
    }))
  )
);

interface Groups {
  readonly ends: readonly number[];
  readonly n: number;
  readonly k: number;
}

const GROUPS: readonly Groups[] = [
  { ends: [5], n: 3, k: 4 },
  { ends: [0, 0, 7], n: 5, k: 9 },
  { ends: [3, 3, 4, 11, 11], n: 17, k: 33 },
  { ends: [1, 20, 23], n: 8, k: 260 },
  { ends: [0, 0], n: 4, k: 4 },
];

/** The group of a row. */
function groupOf(ends: readonly number[], row: number): number {
  return ends.findIndex((end) => row < end);
}

const groupedGemm: CasesOf<"groupedGemm"> = eachFloat((dtype, epsilon) =>
  GROUPS.flatMap(({ ends, n, k }) =>
    [false, true].map((transB) => {
      const rows = pick(ends, ends.length - 1);
      return {
        args: { dtype, transB, groups: ends.length, rows, n, k },
        arrays: { ends },
        expect: (before) => {
          const [a, b] = [before("a"), before("b")];
          const values = each(rows * n, (at) => {
            const [row, j] = [Math.floor(at / n), at % n];
            const first = groupOf(ends, row) * n * k;
            return sum(k, (p) => pick(a, row * k + p) * pick(b, first + (transB ? j * k + p : p * n + j)));
          });
          return { c: { values, relative: epsilon + 1e-6, absolute: 3e-7 * Math.sqrt(k + 1) } };
        },
      };
    })
  )
);

const groupedGemmOuter: CasesOf<"groupedGemmOuter"> = eachFloat((dtype, epsilon) =>
  GROUPS.flatMap(({ ends, n, k: m }) =>
    [float32, dtype].map((outDtype) => {
      const rows = pick(ends, ends.length - 1);
      return {
        args: { dtype, outDtype, groups: ends.length, rows, m, n },
        arrays: { ends },
        expect: (before) => {
          const [a, b] = [before("a"), before("b")];
          const values = each(ends.length * m * n, (at) => {
            const [g, i, j] = [Math.floor(at / (m * n)), Math.floor(at / n) % m, at % n];
            return sum(rows, (row) => groupOf(ends, row) === g ? pick(a, row * m + i) * pick(b, row * n + j) : 0);
          });
          const relative = (outDtype === float32 ? 0 : epsilon) + 1e-6;
          return { c: { values, relative, absolute: 2e-6 } };
        },
      };
    })
  )
);

const groupedBias: CasesOf<"groupedBias"> = eachFloat((dtype, epsilon) =>
  GROUPS.map(({ ends, n: cols }) => {
    const rows = pick(ends, ends.length - 1);
    return {
      args: { dtype, groups: ends.length, rows, cols },
      arrays: { ends },
      expect: (before) => {
        const [x, bias] = [before("x"), before("bias")];
        const values = each(rows * cols, (at) => {
          return pick(x, at) + pick(bias, groupOf(ends, Math.floor(at / cols)) * cols + at % cols);
        });
        return { x: { values, relative: epsilon, absolute: 1e-7 } };
      },
    };
  })
);

const groupedSum: CasesOf<"groupedSum"> = GROUPS.map(({ ends, n: cols }) => {
  const rows = pick(ends, ends.length - 1);
  return {
    args: { groups: ends.length, rows, cols },
    arrays: { ends },
    expect: (before) => {
      const x = before("x");
      const values = each(ends.length * cols, (at) => {
        return sum(rows, (row) => groupOf(ends, row) === Math.floor(at / cols) ? pick(x, row * cols + at % cols) : 0);
      });
      return { y: { values, relative: 1e-7 } };
    },
  };
});

const [ALPHA, LIMIT] = [1.702, 1.25];

/** The result of a gate and an up. */
function clamped([gate = 0, up = 0]: readonly number[]): number {
  const g = Math.min(gate, LIMIT);
  return (Math.max(-LIMIT, Math.min(LIMIT, up)) + 1) * g / (1 + Math.exp(-fround(ALPHA) * g));
}

const clampedSwiglu: CasesOf<"clampedSwiglu"> = eachFloat((dtype, epsilon) =>
  [1, 3, 8, 37].map((n) => ({
    args: { dtype, n, alpha: ALPHA, limit: LIMIT },
    arrays: { gateUp: { low: -3, high: 3 } },
    expect: (before) => {
      const values = byRow(before("gateUp"), 2, (pair) => [clamped(pair)]);
      return { y: { values, relative: epsilon + 2e-6, absolute: 1e-7 } };
    },
  }))
);

const clampedSwigluBackward: CasesOf<"clampedSwigluBackward"> = eachFloat((dtype, epsilon) =>
  [1, 3, 8, 37].map((n) => ({
    args: { dtype, n, alpha: ALPHA, limit: LIMIT },
    arrays: { gateUp: { low: -3, high: 3 } },
    expect: (before) => {
      const dy = before("dy").flatMap((d) => [d, 0]);
      const values = gradient(before("gateUp"), dy, 2, (pair) => [clamped(pair), 0]);
      return { dgateUp: { values, relative: epsilon + 2e-6, absolute: 1e-6 } };
    },
  }))
);

/** Cases of kernels of mixtures of experts. */
export const EXPERT_CASES: Cases<keyof typeof EXPERT_KERNELS> = {
  route,
  routeBackward,
  sortPairs,
  combinePairs,
  combinePairsBackward,
  groupedGemm,
  groupedGemmOuter,
  groupedBias,
  groupedSum,
  clampedSwiglu,
  clampedSwigluBackward,
  topk,
};

/** What else holds for kernels of mixtures of experts. */
export const EXPERT_PROPERTIES: Properties = {
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
