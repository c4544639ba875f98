/**
 * Optimizer updates, exact sums, sums over ranks, random numbers and host functions.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { bfloat16, float32, float64, int64, uint8 } from "../../src/dtype.ts";
import { DTypeError, InternalError } from "../../src/errors.ts";
import { devicePtr, NO_PTR } from "../../src/device/device.ts";
import type { DevicePtr } from "../../src/device/device.ts";
import { Bed, close, FLOATS, fround, pick, sum } from "./kernels_bed.ts";

interface Range {
  readonly start: number;
  readonly end: number;
  readonly learningRate: number;
  readonly weightDecay: number;
}

function putRanges(bed: Bed, ranges: readonly Range[]): DevicePtr {
  const at = bed.room(float64, 2 * ranges.length);
  const view = new DataView(bed.memory.buffer, at);
  ranges.forEach(({ start, end, learningRate, weightDecay }, i) => {
    view.setUint32(16 * i, start, true);
    view.setUint32(16 * i + 4, end, true);
    view.setFloat32(16 * i + 8, learningRate, true);
    view.setFloat32(16 * i + 12, weightDecay, true);
  });
  return at;
}

const RANGES: readonly Range[] = [
  { start: 0, end: 7, learningRate: 0.01, weightDecay: 0.1 },
  { start: 7, end: 8, learningRate: 0.02, weightDecay: 0 },
  { start: 10, end: 31, learningRate: 0.003, weightDecay: 0.01 },
];

test("adamw() follows PyTorch's order of operations bit for bit", async () => {
  const bed = await Bed.open();
  const n = 33;
  const ranges = putRanges(bed, RANGES);
  const [p, m, v] = [
    bed.random(float32, n),
    bed.put(float32, new Array(n).fill(0)),
    bed.put(float32, new Array(n).fill(0)),
  ];
  const want = { p: [...p.x], m: new Array<number>(n).fill(0), v: new Array<number>(n).fill(0) };
  for (const beta1 of [0.9, 0.9, 0.3]) {
    for (let step = 1; step <= 2; step++) {
      const g = bed.random(float32, n);
      const args = {
        beta1,
        beta2: 0.999,
        eps: 1e-8,
        biasCorrection1: 1 - beta1 ** step,
        biasCorrection2Sqrt: Math.sqrt(1 - 0.999 ** step),
      };
      bed.kernels.adamw(p.at, g.at, m, v, ranges, RANGES.length, args);
      for (const { start, end, learningRate, weightDecay } of RANGES) {
        const lr = fround(learningRate);
        for (let i = start; i < end; i++) {
          const grad = pick(g.x, i);
          const decayed = fround(pick(want.p, i) * fround(1 - lr * fround(weightDecay)));
          const weight = fround(1 - beta1);
          const old = pick(want.m, i);
          want.m[i] = weight < 0.5
            ? fround(old + fround(weight * fround(grad - old)))
            : fround(grad - fround(fround(grad - old) * fround(1 - weight)));
          want.v[i] = fround(fround(pick(want.v, i) * fround(0.999)) + fround(fround(fround(1 - 0.999) * grad) * grad));
          const root = fround(Math.sqrt(pick(want.v, i)));
          const denominator = fround(fround(root / fround(args.biasCorrection2Sqrt)) + fround(1e-8));
          const update = fround(fround(fround(-lr / args.biasCorrection1) * pick(want.m, i)) / denominator);
          want.p[i] = fround(decayed + update);
        }
      }
    }
  }
  assert.deepEqual(bed.get(float32, m, n), want.m);
  assert.deepEqual(bed.get(float32, v, n), want.v);
  assert.deepEqual(bed.get(float32, p.at, n), want.p);
});

test("sgd() follows PyTorch's, with and without momentum", async () => {
  const bed = await Bed.open();
  const n = 33;
  const ranges = putRanges(bed, RANGES);
  for (
    const [momentum, dampening, nesterov] of [[0, 0, false], [0.9, 0, false], [0.9, 0.2, false], [
      0.9,
      0,
      true,
    ]] as const
  ) {
    const p = bed.random(float32, n);
    const want = [...p.x];
    const buffer = momentum === 0 ? NO_PTR : bed.room(float32, n); // rubbish: the first step must not read it
    const wantBuffer = new Array<number>(n).fill(0);
    for (let step = 0; step < 3; step++) {
      const g = bed.random(float32, n);
      bed.kernels.sgd(p.at, g.at, buffer, ranges, RANGES.length, momentum, dampening, nesterov, step === 0);
      for (const { start, end, learningRate, weightDecay } of RANGES) {
        for (let i = start; i < end; i++) {
          let d = fround(pick(g.x, i) + fround(fround(weightDecay) * pick(want, i)));
          if (momentum !== 0) {
            const b = fround(fround(pick(wantBuffer, i) * fround(momentum)) + fround(fround(1 - dampening) * d));
            wantBuffer[i] = step === 0 ? d : b;
            d = nesterov ? fround(d + fround(fround(momentum) * pick(wantBuffer, i))) : pick(wantBuffer, i);
          }
          want[i] = fround(pick(want, i) + fround(-fround(learningRate) * d));
        }
      }
    }
    assert.deepEqual(bed.get(float32, p.at, n), want, `momentum ${momentum} nesterov ${nesterov}`);
  }
});

/** An empty accumulator. */
function accumulator(bed: Bed): DevicePtr {
  const at = bed.room(int64, bed.kernels.accumulatorBytes / 8);
  bed.kernels.fill(uint8, at, bed.kernels.accumulatorBytes, 0);
  return at;
}

test("sumSquares() gives the same bits for every order and cut of the rows", async () => {
  const bed = await Bed.open();
  const cols = 13;
  for (const { dtype } of FLOATS) {
    // Rows of very different size, so that plain sums would differ.
    const rows = Array.from({ length: 64 }, (_, r) => bed.values(cols).map((v) => v * 2 ** ((r * 37) % 120 - 60)));
    const whole = accumulator(bed);
    bed.kernels.sumSquares(dtype, whole, bed.put(dtype, rows.flat()), 64, cols);
    const expected = bed.kernels.accumulatorValue(whole);
    const shuffled = rows.map((_, r) => pick([r * 29 % 64], 0)).flatMap((r) => rows[r] ?? []);
    const ranks = [0, 5, 6, 40, 64].slice(1).map((end, i) => {
      const start = pick([0, 5, 6, 40], i);
      const part = accumulator(bed);
      const at = bed.put(dtype, shuffled.slice(start * cols, end * cols));
      bed.kernels.sumSquares(dtype, part, at, end - start, cols);
      return part;
    });
    const total = accumulator(bed);
    bed.kernels.sumRanks(int64, int64, total, ranks, bed.kernels.accumulatorBytes / 8, 1, false);
    assert.equal(bed.kernels.accumulatorValue(total), expected);
    const stored = bed.get(dtype, bed.put(dtype, rows.flat()), 64 * cols);
    close([expected], [sum(64 * cols, (i) => pick(stored, i) ** 2)], 1e-14, 0, "sum of squares");
  }
});

test("accumulatorValue() is the exact sum, rounded once to nearest even", async () => {
  const bed = await Bed.open();
  const limbs = bed.kernels.accumulatorBytes / 8 - 2;
  const of = (digits: ReadonlyMap<number, bigint>): number => {
    const at = accumulator(bed);
    const view = new DataView(bed.memory.buffer, at);
    for (const [limb, digit] of digits) view.setBigInt64(8 * limb, digit, true);
    return bed.kernels.accumulatorValue(at);
  };
  assert.equal(of(new Map()), 0);
  assert.equal(of(new Map([[0, 1n]])), 5e-324);
  assert.equal(of(new Map([[0, 0xffff_ffffn], [1, 0xf_ffffn]])), 2.225073858507201e-308); // largest subnormal
  // Exact against BigInt: N * 2^-1074 for random N, ties among them.
  let seed = 1n;
  for (let round = 0; round < 300; round++) {
    let total = 0n;
    const digits = new Map<number, bigint>();
    const low = Number(seed % 60n);
    for (let limb = low; limb < Math.min(limbs - 1, low + 5); limb++) {
      seed = (seed * 6364136223846793005n + 1442695040888963407n) % 2n ** 64n;
      const digit = round % 3 === 0 && limb < low + 3 ? 0n : seed >> (limb % 2 === 0 ? 3n : 33n); // carries reach far
      digits.set(limb, digit);
      total += digit << BigInt(32 * limb);
    }
    assert.equal(of(digits), scaled(total), `sum ${total}`);
  }
  // Halfway between two doubles: to even, and up when anything lies below.
  assert.equal(of(new Map([[33, 1n], [35, 1n << 20n]])), of(new Map([[35, 1n << 20n]])));
  assert.ok(of(new Map([[33, 1n], [0, 1n], [34, 1n << 20n], [35, 1n << 31n]])) > 0);
  assert.equal(of(new Map([[limbs - 1, 1n << 40n]])), Infinity);
  assert.equal(of(new Map([[limbs, 1n], [limbs + 1, 1n]])), NaN);
  assert.equal(of(new Map([[limbs + 1, 2n]])), Infinity);
});

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

test("sumSquares() counts NaN and infinities, and takes the smallest numbers", async () => {
  const bed = await Bed.open();
  const run = (values: number[]): number => {
    const at = accumulator(bed);
    bed.kernels.sumSquares(float32, at, bed.put(float32, values), values.length, 1);
    return bed.kernels.accumulatorValue(at);
  };
  assert.equal(run([1, Infinity, 2]), Infinity);
  assert.equal(run([1, NaN, Infinity]), NaN);
  assert.equal(run([]), 0);
  assert.equal(run([1.401298464324817e-45]), 1.401298464324817e-45 ** 2);
  assert.equal(run([3.4028234663852886e38]), 3.4028234663852886e38 ** 2);
});

test("sumRanks() adds in the order given, scales once, and accumulates", async () => {
  const bed = await Bed.open();
  for (const from of FLOATS) {
    for (const to of from.dtype === float32 ? FLOATS.slice(0, 1) : FLOATS) {
      for (const n of [0, 1, 5, 16, 39]) {
        for (const count of [1, 2, 3, 5]) {
          const sources = Array.from({ length: count }, (_, s) => bed.random(from.dtype, n, -(10 ** s), 10 ** s));
          for (const accumulate of [false, true]) {
            const dst = bed.random(to.dtype, n);
            bed.kernels.sumRanks(to.dtype, from.dtype, dst.at, sources.map((s) => s.at), n, 0.3, accumulate);
            const want = Array.from({ length: n }, (_, i) => {
              let total = pick(sources[0]?.x ?? [], i);
              for (const source of sources.slice(1)) total = fround(total + pick(source.x, i));
              const value = fround(total * fround(0.3));
              return accumulate ? fround(pick(dst.x, i) + value) : value;
            });
            const rounded = bed.get(to.dtype, bed.put(to.dtype, want), n);
            assert.deepEqual(bed.get(to.dtype, dst.at, n), rounded, `${from.dtype.name} ${count} x ${n}`);
          }
        }
      }
    }
  }
  const at = bed.random(float32, 4);
  assert.throws(() => bed.kernels.sumRanks(bfloat16, float32, at.at, [at.at], 1, 1, false), DTypeError);
  assert.throws(() => bed.kernels.sumRanks(int64, float32, at.at, [at.at], 1, 1, false), DTypeError);
  assert.throws(() => bed.kernels.sumRanks(float32, int64, at.at, [at.at], 1, 1, false), DTypeError);
  assert.throws(() => bed.kernels.sumRanks(float32, float32, at.at, [], 1, 1, false), InternalError);
});

test("sumRanks() adds int64 as integers", async () => {
  const bed = await Bed.open();
  const put = (values: bigint[]): DevicePtr => {
    const at = bed.room(int64, values.length);
    new BigInt64Array(bed.memory.buffer, at, values.length).set(values);
    return at;
  };
  const dst = put([1n, 1n]);
  const sources = [put([2n ** 53n + 1n, -5n]), put([2n ** 60n, 7n]), put([1n, -1n])];
  bed.kernels.sumRanks(int64, int64, dst, sources, 2, 0.5, false);
  assert.deepEqual([...new BigInt64Array(bed.memory.buffer, dst, 2)], [2n ** 60n + 2n ** 53n + 2n, 1n]);
  bed.kernels.sumRanks(int64, int64, dst, sources.slice(2), 2, 0.5, true);
  assert.deepEqual([...new BigInt64Array(bed.memory.buffer, dst, 2)], [2n ** 60n + 2n ** 53n + 3n, 0n]);
});

/** Philox 4x32-10 in BigInt, written from the paper's definition. */
function philox(counter: readonly bigint[], key: readonly bigint[]): bigint[] {
  let [a, b, c, d] = [counter[0] ?? 0n, counter[1] ?? 0n, counter[2] ?? 0n, counter[3] ?? 0n];
  let [k, l] = [key[0] ?? 0n, key[1] ?? 0n];
  const word = 2n ** 32n;
  for (let round = 0; round < 10; round++) {
    const [x, y] = [0xd2511f53n * a, 0xcd9e8d57n * c];
    [a, b, c, d] = [(y / word) ^ b ^ k, y % word, (x / word) ^ d ^ l, x % word];
    k = (k + 0x9e3779b9n) % word;
    l = (l + 0xbb67ae85n) % word;
  }
  return [a, b, c, d];
}

test("uniform() is the Philox stream of its key", async () => {
  assert.deepEqual(philox([0n, 0n, 0n, 0n], [0n, 0n]), [0x6627e8d5n, 0xe169c58dn, 0xbc57ac4cn, 0x9b00dbd8n]); // Random123
  const bed = await Bed.open();
  for (const [key, offset] of [[0, 0], [2 ** 53 - 1, 2 ** 53 - 64], [123456789012, 7]] as const) {
    const at = bed.room(float32, 29);
    bed.kernels.uniform(at, 29, key, offset, 0, 1);
    const want = Array.from({ length: 29 }, (_, i) => {
      const index = BigInt(offset) + BigInt(i);
      const words = philox(
        [(index / 4n) % 2n ** 32n, index / 4n / 2n ** 32n, 0n, 0n],
        [BigInt(key) % 2n ** 32n, BigInt(key) / 2n ** 32n],
      );
      return Number((words[Number(index % 4n)] ?? 0n) >> 8n) / 2 ** 24;
    });
    assert.deepEqual(bed.get(float32, at, 29), want);
  }
});

test("uniform() and normal() do not depend on how the stream is cut", async () => {
  const bed = await Bed.open();
  for (const draw of ["uniform", "normal"] as const) {
    const whole = bed.room(float32, 100);
    bed.kernels[draw](whole, 100, 42, 1000, -1, 2);
    for (const cut of [1, 2, 3, 5, 8, 13]) {
      const parts = bed.room(float32, 100);
      for (let i = 0; i < 100; i += cut) {
        bed.kernels[draw](devicePtr(parts + 4 * i), Math.min(cut, 100 - i), 42, 1000 + i, -1, 2);
      }
      assert.deepEqual(bed.bytes(float32, parts, 100), bed.bytes(float32, whole, 100), `${draw} cut by ${cut}`);
    }
    const other = bed.room(float32, 100);
    bed.kernels[draw](other, 100, 43, 1000, -1, 2);
    assert.notDeepEqual(bed.get(float32, other, 100), bed.get(float32, whole, 100));
  }
});

test("uniform() stays below its upper end and has the right moments", async () => {
  const bed = await Bed.open();
  const n = 200_000;
  const at = bed.room(float32, n);
  bed.kernels.uniform(at, n, 7, 0, -3, 5);
  const x = bed.get(float32, at, n);
  assert.ok(x.every((v) => v >= -3 && v < 5));
  close([x.reduce((a, b) => a + b, 0) / n], [1], 0, 0.03, "mean");
  close([sum(n, (i) => (pick(x, i) - 1) ** 2) / n], [64 / 12], 0.02, 0, "variance");
  bed.kernels.uniform(at, n, 7, 0, 1, 1 + 2 ** -22); // the step is finer than the result's
  assert.ok(bed.get(float32, at, n).every((v) => v >= 1 && v < 1 + 2 ** -22));
});

test("normal() is Box-Muller of the stream, with the right moments and tails", async () => {
  const bed = await Bed.open();
  const n = 200_000;
  const at = bed.room(float32, n);
  bed.kernels.normal(at, n, 11, 0, 0, 1);
  const x = bed.get(float32, at, n);
  const want = Array.from({ length: 400 }, (_, i) => {
    const words = philox([BigInt(Math.floor(i / 4)), 0n, 0n, 0n], [11n, 0n]).map(Number);
    const half = Math.floor(i % 4 / 2) * 2;
    const radius = Math.sqrt(-2 * Math.log((pick(words, half) + 0.5) / 2 ** 32));
    const angle = 2 * Math.PI * Math.floor(pick(words, half + 1) / 256) / 2 ** 24;
    return radius * (i % 2 === 0 ? Math.cos(angle) : Math.sin(angle));
  });
  close(x.slice(0, 400), want, 2e-6, 2e-6, "Box-Muller");
  const moment = (power: number): number => sum(n, (i) => pick(x, i) ** power) / n;
  close([moment(1), moment(2), moment(3), moment(4)], [0, 1, 0, 3], 0.02, 0.02, "moments");
  assert.ok(Math.max(...x.slice(0, 100_000)) > 3.5);
  bed.kernels.normal(at, n, 11, 0, 5, 0.5);
  const moved = bed.get(float32, at, n);
  assert.deepEqual(moved, x.map((v) => fround(fround(v * 0.5) + 5)));
});

test("exactMath agrees with float64 and has the same bits wherever it runs", async () => {
  const { math } = await Bed.open();
  const values = [1e-300, 1e-5, 0.1, 0.5, 1, 2, 3.7, 10, 100, 700];
  for (const x of values) {
    close(
      [math.exp(x), math.log(x), math.sin(x), math.cos(x)],
      [Math.exp(x), Math.log(x), Math.sin(x), Math.cos(x)],
      4e-16,
      1e-16,
      `${x}`,
    );
    close([math.pow(x, 0.3), math.pow(x, -0.999)], [x ** 0.3, x ** -0.999], 5e-16, 0, `pow ${x}`);
  }
  assert.equal(math.log(0), -Infinity);
  assert.equal(math.exp(1000), Infinity);
  // Bits fixed here, so that a change of library or compiler shows.
  assert.deepEqual([math.exp(0.1), math.log(3), math.sin(1e6), math.cos(0.5), math.pow(0.9, 100)], [
    1.1051709180756477,
    1.0986122886681096,
    -0.34999350217129294,
    0.8775825618903728,
    0.000026561398887587544,
  ]);
});
