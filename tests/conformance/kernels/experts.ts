/**
 * Kernels of mixtures of experts against plain loops.
 *
 * @module
 */
import { float32 } from "../../../src/dtype.ts";
import type { EXPERT_KERNELS } from "../../../src/device/kernels/experts.ts";
import { byRow, type Cases, type CasesOf, each, eachFloat, fround, gradient, pick, sum } from "./case.ts";
import { ROUTER_CASES } from "./router.ts";
import { topk } from "./topk.ts";

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

/** Pairs of which a gate or an up lies at the limit, and their gradients where alpha is 0. */
const AT_LIMITS = [LIMIT, 0.5, 0.5, LIMIT, 0.5, -LIMIT, -LIMIT, 0.5];
const SLOPES_AT_LIMITS = [0, 0.625, 1.125, 0, -0.125, 0, 0.75, -0.625];

const insideAndOutside: CasesOf<"clampedSwigluBackward"> = eachFloat((dtype, epsilon) =>
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
const atLimits: CasesOf<"clampedSwigluBackward"> = eachFloat((dtype, epsilon) => [{
  args: { dtype, n: 4, alpha: 0, limit: LIMIT },
  arrays: { gateUp: AT_LIMITS, dy: [1, 1, 1, 1] },
  expect: () => ({ dgateUp: { values: SLOPES_AT_LIMITS, relative: epsilon + 2e-6 } }),
}]);
const clampedSwigluBackward = [...insideAndOutside, ...atLimits];

/** Cases of kernels of mixtures of experts. */
export const EXPERT_CASES: Cases<keyof typeof EXPERT_KERNELS> = {
  ...ROUTER_CASES,
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
