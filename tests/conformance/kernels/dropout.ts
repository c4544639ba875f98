/**
 * Dropout and noise of samples against Philox as the paper defines it, and how often they drop.
 *
 * @module
 */
import assert from "node:assert/strict";
import { float32 } from "../../../src/dtype.ts";
import { devicePtr } from "../../../src/device/device.ts";
import { type Cases, type CasesOf, close, each, eachFloat, fround, pick, type Properties, sum } from "./case.ts";
import { dropoutFactor, type SamplePlace, wordOf } from "./philox.ts";

interface Sizes {
  readonly batch: number;
  readonly rows: number;
  readonly cols: number;
  readonly key: number;
  readonly sample: number;
}

const SIZES: readonly Sizes[] = [
  { batch: 2, rows: 3, cols: 5, key: 0, sample: 0 },
  { batch: 1, rows: 2, cols: 131, key: 123456789012, sample: 7 },
  { batch: 3, rows: 1, cols: 16, key: 2 ** 53 - 1, sample: 2 ** 32 - 2 }, // the low word runs over
  { batch: 2, rows: 4, cols: 1, key: 5, sample: 2 ** 53 - 2 },
  { batch: 0, rows: 4, cols: 3, key: 5, sample: 1 },
];

/** Each place of a call, in order. */
function placesOf({ batch, rows, cols, key, sample }: Sizes): SamplePlace[] {
  return Array.from({ length: batch * rows * cols }, (_, i) => {
    const row = Math.floor(i / cols);
    return { key, sample: sample + Math.floor(row / rows), plane: 0, row: row % rows, col: i % cols };
  });
}

const dropout: CasesOf<"dropout"> = eachFloat((dtype, epsilon) =>
  [0, 0.1, 0.5, 1].flatMap((p) =>
    SIZES.map((sizes) => ({
      args: { dtype, p, ...sizes },
      expect: (before) => {
        const [x, places] = [before("x"), placesOf(sizes)];
        return { y: { values: places.map((place, i) => pick(x, i) * dropoutFactor(p, place)), relative: epsilon } };
      },
    }))
  )
);

const sampleUniform: CasesOf<"sampleUniform"> = SIZES.map((sizes) => ({
  args: { ...sizes, low: 0.5, high: 1.5 },
  expect: () => {
    const unit = (place: SamplePlace): number => (Math.floor(wordOf(place) / 512) + 0.5) / 2 ** 23;
    return { dst: { values: placesOf(sizes).map((place) => fround(unit(place) + 0.5)) } };
  },
}));

/** Cases of dropout and noise. */
export const DROPOUT_CASES: Cases<"dropout" | "sampleUniform"> = { dropout, sampleUniform };

/** Further tests of dropout. */
export const DROPOUT_PROPERTIES: Properties = {
  "dropout() gives a sample the same mask in any batch": (bed) => {
    const [batch, rows, cols, key] = [6, 3, 21, 99];
    const size = rows * cols;
    const x = bed.put(float32, each(batch * size, (i) => i + 1));
    const [whole, parts] = [bed.room(float32, batch * size), bed.room(float32, batch * size)];
    const run = (y: number, first: number, count: number): void => {
      const [from, to] = [devicePtr(x + 4 * first * size), devicePtr(y + 4 * first * size)];
      const args = { dtype: float32, batch: count, rows, cols, p: 0.4, key, sample: 1000 + first };
      bed.device.kernels.dropout({ ...args, y: to, x: from });
    };
    run(whole, 0, batch);
    for (const cut of [1, 2, 3]) {
      for (let first = 0; first < batch; first += cut) run(parts, first, cut);
      assert.deepEqual(bed.bytes(parts, 4 * batch * size), bed.bytes(whole, 4 * batch * size), `by ${cut}`);
    }
  },
  "dropout() drops as often as it is told, evenly over rows, columns and samples": (bed) => {
    const [batch, rows, cols] = [8, 50, 500];
    const n = batch * rows * cols;
    const [x, y] = [bed.put(float32, each(n, () => 1)), bed.room(float32, n)];
    for (const p of [0.05, 0.3, 0.75]) {
      bed.device.kernels.dropout({ dtype: float32, batch, rows, cols, p, key: 3, sample: 40, y, x });
      const kept = bed.get(float32, y, n);
      const rateOf = (of: (i: number) => boolean): number => {
        const own = kept.filter((_, i) => of(i));
        return own.filter((value) => value === 0).length / own.length;
      };
      // Four standard deviations of a share of 200 000, of 1/8 and of 1/4 of them.
      const within = (parts: number): number => 4 * Math.sqrt(p * (1 - p) / (n / parts));
      close([rateOf(() => true)], [p], 0, within(1), `p ${p}`);
      for (let b = 0; b < batch; b++) {
        close([rateOf((i) => Math.floor(i / rows / cols) === b)], [p], 0, within(8), "sample");
      }
      for (let k = 0; k < 4; k++) close([rateOf((i) => i % 4 === k)], [p], 0, within(4), "column");
      close([sum(n, (i) => pick(kept, i)) / n], [1], 0, within(1) / (1 - p), "the mean stays");
      // Neighbors along each dim are dropped independently of each other.
      for (const step of [1, cols, rows * cols]) {
        const both = sum(n - step, (i) => Number(pick(kept, i) === 0 && pick(kept, i + step) === 0)) / (n - step);
        close([both], [p * p], 0, 4 * Math.sqrt(p * p / n), `neighbors ${step} apart`);
      }
    }
  },
};
