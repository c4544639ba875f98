/**
 * Kernels of layers against formulas in float64, gradients against central differences of those formulas.
 *
 * @module
 */
import assert from "node:assert/strict";
import { float32, int32 } from "../../../src/dtype.ts";
import type { LAYER_KERNELS } from "../../../src/device/kernels/layers.ts";
import { softmaxRow } from "../../support/reference.ts";
import {
  byRow,
  type Cases,
  type CasesOf,
  close,
  each,
  eachFloat,
  fround,
  gradient,
  pick,
  type Properties,
  rounding,
  sum,
} from "./case.ts";

const COLS = [1, 2, 3, 4, 7, 64, 129];
const [ROWS, EPS] = [3, 1e-5];

const softmax: CasesOf<"softmax"> = eachFloat((dtype, epsilon) =>
  COLS.flatMap((cols) =>
    [false, true].map((log) => ({
      args: { dtype, log, rows: ROWS, cols },
      arrays: { x: { low: -6, high: 6 } },
      expect: (before) => {
        const values = byRow(before("x"), cols, (row) => log ? softmaxRow(row).map(Math.log) : softmaxRow(row));
        // A logarithm near 0 is a difference of numbers up to 12.
        return { y: { values, relative: epsilon + 1e-6, absolute: log ? 2e-6 : 0 } };
      },
    }))
  )
);

const softmaxBackward: CasesOf<"softmaxBackward"> = eachFloat((dtype, epsilon) =>
  COLS.flatMap((cols) =>
    [false, true].map((log) => ({
      args: { dtype, log, rows: ROWS, cols },
      arrays: { y: log ? { low: -4, high: 0 } : { low: 0, high: 1 / cols } },
      expect: (before) => {
        const dy = before("dy");
        const values = byRow(before("y"), cols, (y, r) => {
          const d = dy.slice(r * cols, (r + 1) * cols);
          const total = sum(cols, (j) => log ? pick(d, j) : pick(y, j) * pick(d, j));
          return y.map((v, j) => log ? pick(d, j) - Math.exp(v) * total : v * (pick(d, j) - total));
        });
        return { dx: { values, relative: epsilon + 1e-6, absolute: log ? 1e-5 : 2e-7 } };
      },
    }))
  )
);

/** `1 / rms` of a row. */
function rmsScale(row: readonly number[]): number {
  return 1 / Math.sqrt(sum(row.length, (j) => pick(row, j) ** 2) / row.length + EPS);
}

/** Contents of a norm's arrays, with or without its weights. */
const NORM_ARRAYS = { x: { low: -2, high: 3 }, w: { low: 0.5, high: 2 } };

/** Ways to take weights: none, as they are, and as what is added to 1. */
const WEIGHTS = [
  { without: ["w"], zeroCentered: false },
  { without: [], zeroCentered: false },
  { without: [], zeroCentered: true },
] as const;

/** The factor of each element of a row. */
function factorsOf(
  { without: { length }, zeroCentered }: typeof WEIGHTS[number],
  cols: number,
  w: () => number[],
): number[] {
  return length > 0 ? each(cols, () => 1) : zeroCentered ? w().map((v) => 1 + v) : w();
}

const rmsNorm: CasesOf<"rmsNorm"> = eachFloat((dtype, epsilon) =>
  [1, 3, 8, 33].flatMap((cols) =>
    WEIGHTS.map((weights) => ({
      args: { dtype, rows: ROWS, cols, eps: EPS, zeroCentered: weights.zeroCentered },
      arrays: NORM_ARRAYS,
      without: weights.without,
      expect: (before, after) => {
        const [x, kept] = [before("x"), after("rstd")];
        const round = weights.zeroCentered ? fround : rounding(dtype);
        const w = factorsOf(weights, cols, () => before("w"));
        const values = byRow(x, cols, (row, r) => row.map((v, j) => round(fround(v * pick(kept, r))) * pick(w, j)));
        const rstd = { values: byRow(x, cols, (row) => [rmsScale(row)]), relative: 1e-7 };
        return { y: { values, relative: epsilon * 1.01 + (weights.zeroCentered ? 1e-7 : 0) }, rstd };
      },
    }))
  )
);

const rmsNormBackward: CasesOf<"rmsNormBackward"> = eachFloat((dtype, epsilon) =>
  [1, 3, 8, 33].flatMap((cols) =>
    WEIGHTS.map((weights) => {
      const x = each(ROWS * cols, (i) => rounding(dtype)(fround(2.5 * Math.sin(3 * i + cols) + 0.5)));
      const scales = byRow(x, cols, (row) => [fround(rmsScale(row))]);
      return {
        args: { dtype, rows: ROWS, cols, zeroCentered: weights.zeroCentered },
        arrays: { ...NORM_ARRAYS, x, rstd: scales },
        without: weights.without,
        expect: (before) => {
          const [dy, round] = [before("dy"), weights.zeroCentered ? fround : rounding(dtype)];
          const w = factorsOf(weights, cols, () => before("w"));
          const f = (row: readonly number[]): number[] => {
            const scale = rmsScale(row);
            return row.map((u, j) => u * scale * pick(w, j));
          };
          const normal = (r: number, j: number): number => round(fround(pick(x, r * cols + j) * pick(scales, r)));
          const dw = each(cols, (j) => sum(ROWS, (r) => pick(dy, r * cols + j) * normal(r, j)));
          return {
            dx: { values: gradient(x, dy, cols, f), relative: 2 * epsilon + 1e-6, absolute: 2e-6 },
            dw: { values: dw, relative: 2e-7, absolute: 2e-7 },
          };
        },
      };
    })
  )
);

const mean = (row: readonly number[]): number => row.reduce((a, b) => a + b, 0) / row.length;

/** LayerNorm of a row. */
function layerRow(row: readonly number[], w: readonly number[], b: readonly number[]): number[] {
  const [center, scale] = [mean(row), layerScale(row)];
  return row.map((u, j) => (u - center) * scale * pick(w, j) + pick(b, j));
}

function layerScale(row: readonly number[]): number {
  const center = mean(row);
  return 1 / Math.sqrt(sum(row.length, (j) => (pick(row, j) - center) ** 2) / row.length + EPS);
}

const layerNorm: CasesOf<"layerNorm"> = eachFloat((dtype, epsilon) =>
  [3, 5, 8, 131].flatMap((cols) =>
    ([[], ["w"], ["b"], ["w", "b"]] as const).map((without) => ({
      args: { dtype, rows: ROWS, cols, eps: EPS },
      arrays: NORM_ARRAYS,
      without,
      expect: (before) => {
        const x = before("x");
        const w = without.some((name) => name === "w") ? each(cols, () => 1) : before("w");
        const b = without.some((name) => name === "b") ? each(cols, () => 0) : before("b");
        return {
          y: { values: byRow(x, cols, (row) => layerRow(row, w, b)), relative: epsilon + 5e-7, absolute: 2e-6 },
          mean: { values: byRow(x, cols, (row) => [mean(row)]), relative: 1e-7, absolute: 1e-9 },
          rstd: { values: byRow(x, cols, (row) => [layerScale(row)]), relative: 1e-6 },
        };
      },
    }))
  )
);

const layerNormBackward: CasesOf<"layerNormBackward"> = eachFloat((dtype, epsilon) =>
  [3, 5, 8, 131].flatMap((cols) =>
    [true, false].map((weighted) => {
      const x = each(ROWS * cols, (i) => rounding(dtype)(fround(2.5 * Math.sin(3 * i + cols) + 0.5)));
      const [means, scales] = [
        byRow(x, cols, (row) => [fround(mean(row))]),
        byRow(x, cols, (row) => [fround(layerScale(row))]),
      ];
      return {
        args: { dtype, rows: ROWS, cols },
        arrays: { ...NORM_ARRAYS, x, mean: means, rstd: scales },
        ...weighted ? {} : { without: ["w"] },
        expect: (before) => {
          const dy = before("dy");
          const w = weighted ? before("w") : each(cols, () => 1);
          const f = (row: readonly number[]): number[] => layerRow(row, w, each(cols, () => 0));
          const column = (g: (at: number, r: number) => number): number[] =>
            each(cols, (j) => sum(ROWS, (r) => g(r * cols + j, r)));
          const dw = column((i, r) => pick(dy, i) * (pick(x, i) - pick(means, r)) * pick(scales, r));
          return {
            dx: { values: gradient(x, dy, cols, f), relative: 2 * epsilon + 2e-6, absolute: 5e-6 },
            dw: { values: dw, relative: 1e-6, absolute: 1e-6 },
            db: { values: column((i) => pick(dy, i)), relative: 1e-7, absolute: 1e-7 },
          };
        },
      };
    })
  )
);

const ANGLES = each(7 * 17, (i) => 3 * Math.sin(7 * i + 1));
/** Head dim, first element that is turned, half of those that are, and whether neighbors are. */
const TURNS = [
  [8, 0, 4, false],
  [10, 0, 3, false],
  [4, 0, 1, true],
  [7, 3, 2, false],
  [34, 0, 17, true],
  [13, 5, 3, true],
] as const;
const rope: CasesOf<"rope"> = eachFloat((dtype, epsilon) =>
  TURNS.flatMap(([headDim, start, half, interleaved]) =>
    [undefined, [4, 0, 6, 1, 1, 5]].flatMap((positions) =>
      [false, true].map((inverse) => {
        const [batch, seq, heads, tableRows] = [2, 3, 2, 7];
        const angles = ANGLES.slice(0, tableRows * half);
        const strideX = heads * headDim + 5;
        const tables = { cos: angles.map(Math.cos), sin: angles.map(Math.sin) };
        return {
          args: { dtype, batch, seq, heads, headDim, start, half, tableRows, strideX, interleaved, inverse },
          arrays: positions === undefined ? tables : { ...tables, positions },
          ...positions === undefined ? { without: ["positions"] } : {},
          expect: (before) => {
            const x = before("x");
            const values = each(batch * seq * heads * headDim, (flat) => {
              const i = flat % headDim - start;
              const token = Math.floor(flat / (heads * headDim));
              const head = token * strideX + (Math.floor(flat / headDim) % heads) * headDim + start;
              if (i < 0 || i >= 2 * half) return pick(x, head + i);
              const [pair, isFirst] = interleaved ? [Math.floor(i / 2), i % 2 === 0] : [i % half, i < half];
              const angle = pick(angles, (positions?.[token] ?? token % seq) * half + pair) * (inverse ? -1 : 1);
              const first = interleaved ? 2 * pair : pair;
              const [a, b] = [pick(x, head + first), pick(x, head + first + (interleaved ? 1 : half))];
              return isFirst ? a * Math.cos(angle) - b * Math.sin(angle) : b * Math.cos(angle) + a * Math.sin(angle);
            });
            return { y: { values, relative: epsilon, absolute: 2.01e-7 } };
          },
        };
      })
    )
  )
);

const FREQUENCIES = [1, 0.1, 0.01, 1e-4].map(fround);
const ropeTable: CasesOf<"ropeTable"> = [{
  args: { positions: 1000, half: 4, scale: 1.5 },
  arrays: { invFreq: FREQUENCIES },
  expect: () => {
    // The cosine is that of the float32 angle.
    const angle = (i: number): number => fround(Math.floor(i / 4) * pick(FREQUENCIES, i % 4));
    return {
      cos: { values: each(4000, (i) => 1.5 * Math.cos(angle(i))), relative: 2e-7 },
      sin: { values: each(4000, (i) => 1.5 * Math.sin(angle(i))), relative: 2e-7 },
    };
  },
}];

const [VOCAB, WIDTH, IDS] = [6, 5, [5, 0, 3, 3]] as const;
const embedding: CasesOf<"embedding"> = eachFloat((dtype) => [{
  args: { dtype, n: IDS.length, vocab: VOCAB, cols: WIDTH },
  arrays: { ids: IDS },
  expect: (before) => {
    const w = before("w");
    return { y: { values: IDS.flatMap((id) => w.slice(id * WIDTH, (id + 1) * WIDTH)) } };
  },
}]);

const embeddingBackward: CasesOf<"embeddingBackward"> = eachFloat((dtype) =>
  [-1, 3].map((paddingIdx) => {
    const ids = [5, 0, 6, 3, 3, -2]; // two out of range
    return {
      args: { dtype, n: ids.length, vocab: VOCAB, cols: WIDTH, paddingIdx },
      arrays: { ids },
      expect: (before) => {
        const dy = before("dy");
        const counts = (i: number, row: number): boolean => ids[i] === row && row !== paddingIdx;
        const values = each(VOCAB * WIDTH, (at) => {
          const [row, col] = [Math.floor(at / WIDTH), at % WIDTH];
          return sum(ids.length, (i) => counts(i, row) ? pick(dy, i * WIDTH + col) : 0);
        });
        return { dw: { values, relative: 1e-7 } };
      },
    };
  })
);

const crossEntropy: CasesOf<"crossEntropy"> = eachFloat((dtype, epsilon) =>
  ([1, 2, 3, 7, 64, 131] as const).flatMap((cols) =>
    [[0, 0], [0.1, 0], [0, 1e-2], [0.3, 0.5]].map(([labelSmoothing = 0, zLoss = 0]) => {
      const labels = [0, cols - 1, -100, Math.floor(cols / 2)];
      return {
        label: `smoothing ${labelSmoothing}, z ${zLoss}`,
        args: { dtype, rows: labels.length, cols, ignoreIndex: -100, firstRow: 0, labelSmoothing, zLoss },
        arrays: { logits: { low: -5, high: 5 }, labels },
        expect: (before) => {
          const x = before("logits");
          const row = (r: number): number[] => softmaxRow(x.slice(r * cols, (r + 1) * cols));
          const logSum = (r: number): number => Math.log(sum(cols, (j) => Math.exp(pick(x, r * cols + j))));
          const lossOf = (label: number, r: number): number => {
            const smooth = sum(cols, (j) => -Math.log(pick(row(r), j))) / cols;
            return (1 - labelSmoothing) * -Math.log(pick(row(r), label)) + labelSmoothing * smooth +
              zLoss * logSum(r) ** 2;
          };
          const losses = labels.map((label, r) => label === -100 ? 0 : lossOf(label, r));
          const dlogits = labels.flatMap((label, r) =>
            row(r).map((p, j) => {
              const target = (1 - labelSmoothing) * Number(j === label) + labelSmoothing / cols;
              return label === -100 ? 0 : p * (1 + 2 * zLoss * logSum(r)) - target;
            })
          );
          return {
            losses: { values: losses, relative: 4e-7, absolute: 4e-7 },
            dlogits: { values: dlogits, relative: epsilon + 5e-7, absolute: zLoss === 0 ? 1e-7 : 1e-6 },
          };
        },
      };
    })
  )
);

const sigmoid = (g: number): number => 1 / (1 + Math.exp(-g));
const swiglu: CasesOf<"swiglu"> = eachFloat((dtype, epsilon) =>
  [1, 6, 77].map((n) => ({
    args: { dtype, n },
    arrays: { gate: { low: -6, high: 6 } },
    expect: (before) => {
      const up = before("up");
      const values = before("gate").map((g, i) => g * sigmoid(g) * pick(up, i));
      return { y: { values, relative: epsilon + 5e-7 } };
    },
  }))
);

const swigluBackward: CasesOf<"swigluBackward"> = eachFloat((dtype, epsilon) =>
  [1, 6, 77].map((n) => ({
    args: { dtype, n },
    arrays: { gate: { low: -6, high: 6 } },
    expect: (before) => {
      const [gate, up, dy] = [before("gate"), before("up"), before("dy")];
      const dgate = gate.map((g, i) => {
        const s = sigmoid(g);
        return pick(dy, i) * pick(up, i) * s * (1 + g * (1 - s));
      });
      const dup = gate.map((g, i) => pick(dy, i) * g * sigmoid(g));
      return {
        dgate: { values: dgate, relative: epsilon + 1e-6, absolute: 3e-7 },
        dup: { values: dup, relative: epsilon + 1e-6 },
      };
    },
  }))
);

/** Cases of kernels of layers. */
export const LAYER_CASES: Cases<Exclude<keyof typeof LAYER_KERNELS, "dropout">> = {
  softmax,
  softmaxBackward,
  rmsNorm,
  rmsNormBackward,
  layerNorm,
  layerNormBackward,
  rope,
  ropeTable,
  embedding,
  embeddingBackward,
  crossEntropy,
  swiglu,
  swigluBackward,
};

/** Further tests of kernels of layers. */
export const LAYER_PROPERTIES: Properties = {
  "softmax() takes huge, hidden and NaN scores": (bed) => {
    const run = (x: readonly number[]): number[] => {
      const at = bed.put(float32, x);
      bed.device.kernels.softmax({ dtype: float32, log: false, rows: 1, cols: x.length, y: at, x: at });
      return bed.get(float32, at, x.length);
    };
    assert.deepEqual(run([3e38, -3e38, 3e38, -Infinity, -3e38]), [0.5, 0, 0.5, 0, 0]);
    for (let place = 0; place < 6; place++) {
      assert.deepEqual(run(each(6, (i) => i === place ? NaN : i)), each(6, () => NaN), `NaN at ${place}`);
    }
  },
  "layerNorm() loses no variance far from zero": (bed) => {
    const x = bed.values(64).map((v) => fround(v + 10_000));
    const [y, means, rstd] = [bed.room(float32, 64), bed.room(float32, 1), bed.room(float32, 1)];
    const args = { dtype: float32, rows: 1, cols: 64, eps: 0 };
    bed.device.kernels.layerNorm({ ...args, y, mean: means, rstd, x: bed.put(float32, x) });
    const deviation = Math.sqrt(sum(64, (i) => (pick(x, i) - mean(x)) ** 2) / 64);
    close(bed.get(float32, rstd, 1), [1 / deviation], 1e-6, 0, "rstd far from zero");
  },
  "crossEntropy() survives extreme logits": (bed) => {
    const [logits, labels] = [[3e38, -3e38, 0, 0, -Infinity, 1, 1, 1, NaN, 0, 0, 0], [0, 0, 1]];
    const losses = bed.room(float32, 3);
    const attrs = { ignoreIndex: -100, firstRow: 0, labelSmoothing: 0, zLoss: 0 };
    const args = { dtype: float32, rows: 3, cols: 4, ...attrs, losses };
    bed.device.kernels.crossEntropy({ ...args, logits: bed.put(float32, logits), labels: bed.put(int32, labels) });
    assert.deepEqual(bed.get(float32, losses, 3), [0, Infinity, NaN]);
  },
};
