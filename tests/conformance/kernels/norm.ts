/**
 * The gradient norm: exact sums of squares, and the factor and the gate that follow from them.
 *
 * @module
 */
import assert from "node:assert/strict";
import { float32, int32, int64 } from "../../../src/dtype.ts";
import type { DevicePtr } from "../../../src/device/device.ts";
import { CONSTANTS } from "../../../src/device/kernels/signature.ts";
import type { Bed } from "./bed.ts";
import { type Cases, type CasesOf, each, eachFloat, FLOATS, fround, pick, type Properties, sum } from "./case.ts";

const { ACCUMULATOR_WORDS: WORDS } = CONSTANTS;
/** Counters behind an accumulator's digits. */
const [NANS, INFINITIES, FAULTS] = [WORDS - 3, WORDS - 2, WORDS - 1];

/** `n * 2^-1074`, rounded to nearest even. */
function scaled(n: bigint): number {
  const bits = n.toString(2).length;
  const drop = BigInt(Math.max(0, bits - 53));
  let mantissa = n >> drop;
  const rest = n - (mantissa << drop);
  const half = drop === 0n ? 1n : 1n << (drop - 1n);
  if (rest > half || (rest === half && mantissa % 2n === 1n)) mantissa += 1n;
  let value = Number(mantissa);
  for (let exponent = Number(drop) - 1074; exponent !== 0;) {
    const step = Math.max(-1000, Math.min(1000, exponent));
    value *= 2 ** step;
    exponent -= step;
  }
  return value;
}

/** The words of an accumulator that holds `digits[limb] * 2^(32 limb - 1074)`. */
function accumulatorOf(digits: ReadonlyMap<number, bigint>): Uint8Array {
  const words = new BigInt64Array(WORDS);
  for (const [limb, digit] of digits) words[limb] = digit;
  return new Uint8Array(words.buffer);
}

/** The words of an accumulator to which some squares were added. */
function sumOf(values: readonly number[]): Uint8Array {
  const digits = new Map<number, bigint>();
  const add = (limb: number, digit: bigint): void => void digits.set(limb, (digits.get(limb) ?? 0n) + digit);
  for (const value of values) {
    if (Number.isNaN(value)) add(NANS, 1n);
    else if (value === Infinity) add(INFINITIES, 1n);
    else {
      const bits = new DataView(Float64Array.of(value).buffer).getBigUint64(0, true);
      const exponent = Number(bits >> 52n);
      const fraction = bits & ((1n << 52n) - 1n);
      const place = Math.max(0, exponent - 1);
      const all = (exponent === 0 ? fraction : fraction | (1n << 52n)) << BigInt(place % 32);
      [0n, 32n, 64n].forEach((shift, i) => add(Math.floor(place / 32) + i, (all >> shift) & 0xffffffffn));
    }
  }
  return accumulatorOf(digits);
}

const words = (bytes: Uint8Array): number[] => Array.from(new BigInt64Array(bytes.slice().buffer), Number);

const clearAccumulator: CasesOf<"clearAccumulator"> = [{
  args: {},
  expect: () => ({ accumulator: { values: each(WORDS, () => 0) } }),
}];

/** A sum of powers in float64, in the order of the kernel: 16 lanes, which are added by halves. */
function sumOfPowers(block: readonly number[], power: number): number {
  const term = (x: number = 0): number => each(power, () => Math.abs(x)).reduce((product, factor) => product * factor);
  let lanes = each(16, (lane) => sum(Math.ceil(block.length / 16), (i) => term(block[16 * i + lane])));
  while (lanes.length > 1) lanes = each(lanes.length / 2, (i) => pick(lanes, i) + pick(lanes, i + lanes.length / 2));
  return pick(lanes, 0);
}

const sumPowers: CasesOf<"sumPowers"> = eachFloat((dtype) =>
  [[0, 64], [1, 64], [64, 64], [200, 64], [39, 13], [5, 1]].flatMap(([n = 0, block = 1]) =>
    [1, 2, 3].map((power) => ({
      args: { dtype, power, n, block },
      arrays: { accumulator: sumOf([3]) },
      expect: (before) => {
        const src = before("src");
        const sums = each(Math.ceil(n / block), (i) => sumOfPowers(src.slice(i * block, (i + 1) * block), power));
        return { accumulator: { values: words(sumOf([3, ...sums])) } };
      },
    }))
  )
);

const largest: CasesOf<"largest"> = [0, 1, 5, 203].map((n) => ({
  args: { n },
  expect: (before) => ({ dst: { values: [Math.max(0, ...before("src").map(Math.abs)), 0] } }),
}));

const accumulateLargest: CasesOf<"accumulateLargest"> = [[2.5, 0], [0, 0], [7, 1], [NaN, 0]].map((
  [value = 0, fault = 0],
) => ({
  label: `of ${value}, ${fault}`,
  args: {},
  arrays: { src: [value, fault] },
  expect: () => ({ accumulator: { values: words(sumOf([value])).with(FAULTS, fault) } }),
}));

const clipFactor: CasesOf<"clipFactor"> = [[25, 1], [25, 5], [25, Infinity], [0, 1], [1e60, 2], [1e-60, 1]].flatMap(
  ([total = 0, maxNorm = 0]) =>
    [0n, 3n].flatMap((faults) =>
      [1, 2, 3].map((power) => {
        const accumulator = sumOf([total]);
        new DataView(accumulator.buffer).setBigInt64(8 * FAULTS, faults, true);
        const scale = power === 3 ? 1024 : 1;
        const norm = (power === 1 ? total : power === 2 ? Math.sqrt(total) : Math.cbrt(total)) / scale;
        const relative = power === 3 ? 2 ** -23 : 0; // the root may be off by the last place
        return {
          label: `of ${total} with ${faults} faults`,
          args: { power, maxNorm, ifNonfinite: "skip" as const },
          arrays: { accumulator, scale: [scale], overflow: [0] },
          expect: () => ({
            norm: { values: [fround(norm)], relative },
            factor: { values: [fround(Math.min(1, maxNorm / (norm + 1e-6)) / scale)], relative },
            gate: { values: [Number(faults > 0n)] },
            overflow: { values: [0] },
          }),
        };
      })
    ),
);

const SCALES: readonly (readonly [scale: number, progress: number, overflow: number, next: number, steps: number])[] = [
  [65536, 0, 0, 65536, 1],
  [65536, 2, 0, 131072, 0],
  [65536, 2, 1, 32768, 0],
  [3, 0, 1, 1.5, 0],
  [2 ** 127, 2, 0, 2 ** 127, 0],
];
const updateScale: CasesOf<"updateScale"> = SCALES.map(([scale, progress, overflow, next, steps]) => ({
  label: `of ${scale} after ${progress}`,
  args: { growth: 2, backoff: 0.5, interval: 3 },
  arrays: { scale: [scale], progress: [progress], overflow: [overflow] },
  expect: () => ({ scale: { values: [next] }, progress: { values: [steps] }, overflow: { values: [0] } }),
}));

/** Cases of the kernels of the norm. */
export const NORM_CASES: Cases<
  "clearAccumulator" | "sumPowers" | "largest" | "accumulateLargest" | "clipFactor" | "updateScale"
> = { clearAccumulator, sumPowers, largest, accumulateLargest, clipFactor, updateScale };

/** Puts an accumulator into memory. */
function put(bed: Bed, bytes: Uint8Array): DevicePtr {
  const at = bed.room(int64, WORDS);
  bed.device.copyIn(at, bytes);
  return at;
}

/** The norm, the factor that clips it to 2, and the gate of an accumulator. */
function clip(
  bed: Bed,
  accumulator: DevicePtr,
  ifNonfinite: "keep" | "fault" | "skip" = "keep",
  overflow?: DevicePtr,
): readonly [number, number, number] {
  const [norm, factor, gate] = [bed.room(float32, 1), bed.room(float32, 1), bed.room(int32, 1)];
  bed.device.kernels.clipFactor({ power: 2, maxNorm: 2, ifNonfinite, norm, factor, gate, overflow, accumulator });
  return [pick(bed.get(float32, norm, 1), 0), pick(bed.get(float32, factor, 1), 0), pick(bed.get(int32, gate, 1), 0)];
}

/** An accumulator of nothing. */
function cleared(bed: Bed): DevicePtr {
  const accumulator = bed.room(int64, WORDS);
  bed.device.kernels.clearAccumulator({ accumulator });
  return accumulator;
}

/** Further tests of the norm. */
export const NORM_PROPERTIES: Properties = {
  "sumPowers() gives the same bits for every order and cut of the blocks": (bed) => {
    const block = 13;
    for (const { dtype } of FLOATS) {
      // Blocks of very different size, so that plain sums would differ.
      const blocks = each(64, (r) => r).map((r) => bed.values(block).map((v) => v * 2 ** ((r * 37) % 120 - 60)));
      const whole = cleared(bed);
      const args = { dtype, power: 2, block };
      bed.device.kernels.sumPowers({ ...args, n: 64 * block, accumulator: whole, src: bed.put(dtype, blocks.flat()) });
      const shuffled = blocks.map((_, r) => blocks[r * 29 % 64] ?? []);
      const parts = [[0, 5], [5, 6], [6, 40], [40, 64]].map(([start = 0, end = 0]) => {
        const [accumulator, src] = [cleared(bed), bed.put(dtype, shuffled.slice(start, end).flat())];
        bed.device.kernels.sumPowers({ ...args, n: (end - start) * block, accumulator, src });
        return accumulator;
      });
      const total = cleared(bed);
      const integers = { dtype: int64, dstDtype: int64, n: WORDS, accumulate: false, pastCaches: false };
      bed.device.kernels.sumRanks({ ...integers, dst: total, sources: parts });
      assert.deepEqual(clip(bed, total), clip(bed, whole));
    }
  },
  "clipFactor() takes the root of the exact sum, carries and ties included": (bed) => {
    const norm = (digits: ReadonlyMap<number, bigint>): number => clip(bed, put(bed, accumulatorOf(digits)))[0];
    let seed = 1n;
    for (let round = 0; round < 300; round++) {
      let total = 0n;
      const digits = new Map<number, bigint>();
      const low = 10 + Number(seed % 50n);
      for (let limb = low; limb < Math.min(NANS - 1, low + 5); limb++) {
        seed = (seed * 6364136223846793005n + 1442695040888963407n) % 2n ** 64n;
        const digit = round % 3 === 0 && limb < low + 3 ? 0n : seed >> (limb % 2 === 0 ? 3n : 33n); // carries reach far
        digits.set(limb, digit);
        total += digit << BigInt(32 * limb);
      }
      assert.equal(norm(digits), fround(Math.sqrt(scaled(total))), `sum ${total}`);
    }
    assert.equal(norm(new Map()), 0);
    assert.equal(norm(new Map([[NANS - 1, 1n << 40n]])), Infinity);
  },
  "sumPowers() counts NaN and infinities, and takes the smallest numbers": (bed) => {
    const run = (values: readonly number[]): readonly [number, number, number] => {
      const accumulator = cleared(bed);
      const args = { dtype: float32, power: 2, n: values.length, block: 1, accumulator };
      bed.device.kernels.sumPowers({ ...args, src: bed.put(float32, values) });
      return clip(bed, accumulator);
    };
    assert.deepEqual(run([1, Infinity, 2]), [Infinity, 0, 0]);
    assert.deepEqual(run([1, NaN, Infinity]), [NaN, NaN, 0]);
    assert.deepEqual(run([]), [0, 1, 0]);
    assert.deepEqual(run([1.401298464324817e-45]), [1.401298464324817e-45, 1, 0]);
    assert.deepEqual(run([3.4028234663852886e38])[0], 3.4028234663852886e38);
  },
  "clipFactor() makes a norm that is not finite a fault where it must not be": (bed) => {
    for (const value of [NaN, Infinity]) {
      const accumulator = put(bed, sumOf([value]));
      assert.deepEqual(clip(bed, accumulator, "fault"), [value, 1, 1]);
      assert.deepEqual(bed.device.status.read(), { kind: 4, place: 0, value, limit: 0 });
      bed.device.status.clear();
    }
  },
  "clipFactor() notes an overflow where the update is to be left out": (bed) => {
    for (const value of [NaN, Infinity, 9]) {
      const [accumulator, overflow] = [put(bed, sumOf([value])), bed.put(int32, [0])];
      const isFinite = Number.isFinite(value);
      const clipped = isFinite ? [3, fround(2 / (3 + 1e-6)), 0] : [value, 1, 1];
      assert.deepEqual(clip(bed, accumulator, "skip", overflow), clipped);
      assert.deepEqual(bed.get(int32, overflow, 1), [Number(!isFinite)]);
      assert.equal(bed.device.status.read(), undefined);
    }
  },
  "largest() keeps NaN and counts the fault there is": (bed) => {
    const largest = (values: readonly number[]): number[] => {
      const dst = bed.room(float32, 2);
      bed.device.kernels.largest({ n: values.length, dst, src: bed.put(float32, values) });
      return bed.get(float32, dst, 2);
    };
    assert.deepEqual(largest([1, -3, Infinity, NaN, 2]), [NaN, 0]);
    assert.deepEqual(largest([1, -Infinity]), [Infinity, 0]);
    const [y, w, ids] = [bed.room(float32, 1), bed.put(float32, [1]), bed.put(int32, [9])];
    bed.device.kernels.embedding({ dtype: float32, n: 1, vocab: 1, cols: 1, y, w, ids });
    assert.deepEqual(largest([-3, 2]), [3, 1]);
    bed.device.status.clear();
  },
  "clearAccumulator() counts the fault there is, and clipFactor() shuts the gate for it": (bed) => {
    const [y, w, ids] = [bed.room(float32, 1), bed.put(float32, [1]), bed.put(int32, [9])];
    bed.device.kernels.embedding({ dtype: float32, n: 1, vocab: 1, cols: 1, y, w, ids });
    assert.deepEqual(clip(bed, cleared(bed)), [0, 1, 1]);
    bed.device.status.clear();
    assert.deepEqual(clip(bed, cleared(bed)), [0, 1, 0]);
  },
};
