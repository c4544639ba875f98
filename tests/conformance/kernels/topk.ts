/**
 * The largest of rows, against a sort, and against PyTorch where numbers are equal.
 *
 * @module
 */
import { byRow, type CasesOf, each, eachFloat, pick } from "./case.ts";

/** Elements of a row, and how many of them are taken. */
const SIZES = [[1, 1], [5, 2], [7, 7], [40, 3], [300, 2], [300, 70]] as const;
const ROWS = 3;

/** The columns that `torch.topk` (2.15, CPU) takes of `n` numbers `(7 i² + i) mod m`. */
export const TIES: readonly (readonly [n: number, k: number, m: number, places: readonly number[]])[] = [
  [4, 2, 1, [2, 3]],
  [8, 2, 1, [6, 5]],
  [8, 4, 1, [6, 5, 4, 7]],
  [16, 4, 1, [10, 11, 12, 9]],
  [60, 4, 1, [39, 40, 41, 38]],
  [64, 8, 1, [44, 41, 42, 43, 46, 47, 40, 45]],
  [128, 8, 1, [84, 87, 86, 85, 82, 81, 88, 83]],
  [128, 2, 1, [0, 1]],
  [512, 8, 1, [7, 4, 1, 3, 5, 0, 2, 6]],
  [512, 10, 3, [247, 271, 268, 265, 262, 259, 253, 250, 229, 232]],
  [256, 8, 5, [171, 56, 181, 176, 61, 166, 71, 186]],
  [64, 6, 4, [51, 30, 50, 27, 26, 22]],
  [100, 20, 7, [20, 76, 69, 48, 83, 13, 62, 41, 34, 90, 97, 6, 27, 55, 40, 68, 33, 47, 89, 26]],
  [200, 3, 2, [0, 1, 2]],
];

/** Cases of `topk`: of numbers that differ within a row, and of equal ones. */
export const topk: CasesOf<"topk"> = eachFloat((dtype) => [
  ...SIZES.map(([cols, k]) => {
    // Of so few bits that every dtype holds them; 7 has no factor in common with the number of columns taken as 307.
    const x = each(ROWS * cols, (i) => (i % cols * 7 + Math.floor(i / cols) * 11) % 307 - 150);
    return {
      args: { dtype, rows: ROWS, cols, k },
      arrays: { x },
      expect: () => ({
        indices: {
          values: byRow(x, cols, (row) => {
            return each(cols, (i) => i).sort((i, j) => pick(row, j) - pick(row, i)).slice(0, k);
          }),
        },
      }),
    };
  }),
  ...TIES.map(([cols, k, m, places]) => ({
    args: { dtype, rows: 1, cols, k },
    arrays: { x: each(cols, (i) => (i * i * 7 + i) % m) },
    expect: () => ({ indices: { values: places } }),
  })),
]);
