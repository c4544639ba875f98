/**
 * Optimizer updates in PyTorch's order of operations to the bit, sums over ranks in their order, random numbers against the
 * paper's definition.
 *
 * @module
 */
import assert from "node:assert/strict";
import { float32, int64 } from "../../../src/dtype.ts";
import { type DevicePtr, devicePtr } from "../../../src/device/device.ts";
import { CONSTANTS } from "../../../src/device/kernels/signature.ts";
import { type Cases, type CasesOf, close, each, FLOATS, fround, pick, type Properties, rounding, sum } from "./case.ts";
import { philox } from "./philox.ts";

const { RECORD_BYTES } = CONSTANTS;

/** One record of an optimizer's table. */
interface Record {
  readonly start: number;
  readonly end: number;
  readonly state: number;
  readonly active: boolean;
  readonly learningRate: number;
  readonly weightDecay: number;
  readonly settings: readonly [number, number, number];
}

function encodeRecords(records: readonly Record[]): Uint8Array {
  const table = new DataView(new ArrayBuffer(records.length * RECORD_BYTES));
  records.forEach(({ start, end, state, active, learningRate, weightDecay, settings }, i) => {
    const at = i * RECORD_BYTES;
    [start, end, state].forEach((value, place) => table.setBigUint64(at + 8 * place, BigInt(value), true));
    table.setUint32(at + 24, Number(active), true);
    [learningRate, weightDecay, ...settings].forEach((value, j) => table.setFloat64(at + 32 + 8 * j, value, true));
  });
  return new Uint8Array(table.buffer);
}

/** Records with gaps between them, states in another order than elements, one that is not active. */
function recordsOf(...settings: readonly (readonly [number, number, number])[]): Record[] {
  const places = [[0, 7, 20], [7, 8, 0], [10, 31, 28], [31, 33, 1]] as const;
  return places.map(([start, end, state], i) => ({
    start,
    end,
    state,
    active: i !== 3,
    learningRate: pick([0.01, 0.02, 0.003, 1], i),
    weightDecay: pick([0.1, 0, 0.01, 1], i),
    settings: settings[i % settings.length] ?? [0, 0, 0],
  }));
}

const SIZES = { n: 33, numStates: 50, numRecords: 4 };
const STEPS = [0, 4, 11, 2];

/**
 * Calls `f` for each element of each record that is updated.
 *
 * @returns the steps taken afterwards
 */
function update(
  records: readonly Record[],
  gated: boolean,
  f: (i: number, state: number, record: Record, step: number) => void,
): number[] {
  return records.map((record, r) => {
    if (!record.active || gated) return pick(STEPS, r);
    const step = pick(STEPS, r) + 1;
    for (let i = record.start; i < record.end; i++) f(i, record.state + i - record.start, record, step);
    return step;
  });
}

/** Without a gate, with an open one, and with one that is set. */
const GATES = [undefined, 0, 1];
const gateArray = (gate: number | undefined): { readonly gate?: readonly number[] } =>
  gate === undefined ? {} : { gate: [gate] };

const adamw: CasesOf<"adamw"> = GATES.map((gate) => {
  const records = recordsOf([0.9, 0.999, 1e-8], [0.3, 0.99, 1e-6]);
  return {
    label: `gate ${gate}`,
    args: SIZES,
    arrays: { records: encodeRecords(records), steps: STEPS, expAvgSq: { low: 0, high: 1 }, ...gateArray(gate) },
    ...gate === undefined ? { without: ["gate"] } : {},
    expect: (before) => {
      const [p, g, m, v] = [before("param"), before("grad"), before("expAvg"), before("expAvgSq")];
      const steps = update(records, gate === 1, (i, at, { learningRate, weightDecay, settings }, step) => {
        const [beta1, beta2, eps] = settings;
        const grad = pick(g, i);
        const weight = fround(1 - beta1);
        const old = pick(m, at);
        m[at] = weight < 0.5
          ? fround(old + fround(weight * fround(grad - old)))
          : fround(grad - fround(fround(grad - old) * fround(1 - weight)));
        const kept = fround(pick(v, at) * fround(beta2));
        v[at] = fround(kept + fround(fround(fround(1 - beta2) * grad) * grad));
        const correction = fround(Math.sqrt(1 - power(beta2, step)));
        const denominator = fround(fround(fround(Math.sqrt(pick(v, at))) / correction) + fround(eps));
        const size = fround(-(learningRate / (1 - power(beta1, step))));
        const decayed = fround(pick(p, i) * fround(1 - learningRate * weightDecay));
        p[i] = fround(decayed + fround(fround(size * pick(m, at)) / denominator));
      });
      return { param: { values: p }, expAvg: { values: m }, expAvgSq: { values: v }, steps: { values: steps } };
    },
  };
});

/** `base ** exponent` by squaring, as the kernel takes it. */
function power(base: number, exponent: number): number {
  let result = 1;
  for (let square = base, n = exponent; n > 0; n = Math.floor(n / 2), square *= square) {
    if (n % 2 === 1) result *= square;
  }
  return result;
}

const sgd: CasesOf<"sgd"> = GATES.flatMap((gate) =>
  [false, true].map((hasMomentum) => {
    // Momentum, dampening, Nesterov's; where there is no buffer, none has momentum.
    const records = hasMomentum ? recordsOf([0.9, 0, 0], [0.9, 0, 1], [0.8, 0.2, 0], [0, 0, 0]) : recordsOf([0, 0, 0]);
    const without = [...gate === undefined ? ["gate" as const] : [], ...hasMomentum ? [] : ["momentumBuffer" as const]];
    return {
      label: `gate ${gate}`,
      args: SIZES,
      arrays: { records: encodeRecords(records), steps: STEPS, ...gateArray(gate) },
      without,
      expect: (before) => {
        const [p, g, buffer] = [before("param"), before("grad"), hasMomentum ? before("momentumBuffer") : []];
        const steps = update(records, gate === 1, (i, at, { learningRate, weightDecay, settings }, step) => {
          const [momentum, dampening, nesterov] = settings;
          let d = fround(pick(g, i) + fround(fround(weightDecay) * pick(p, i)));
          if (momentum !== 0) {
            const kept = fround(pick(buffer, at) * fround(momentum));
            const b = step === 1 ? d : fround(kept + fround(fround(1 - dampening) * d));
            buffer[at] = b;
            d = nesterov === 0 ? b : fround(d + fround(fround(momentum) * b));
          }
          p[i] = fround(pick(p, i) + fround(-fround(learningRate) * d));
        });
        const common = { param: { values: p }, steps: { values: steps } };
        return hasMomentum ? { ...common, momentumBuffer: { values: buffer } } : common;
      },
    };
  })
);

const lion: CasesOf<"lion"> = GATES.map((gate) => {
  const records = recordsOf([0.9, 0.99, 0], [0.3, 0.8, 0]);
  return {
    label: `gate ${gate}`,
    args: SIZES,
    arrays: { records: encodeRecords(records), steps: STEPS, ...gateArray(gate) },
    ...gate === undefined ? { without: ["gate"] } : {},
    expect: (before) => {
      const [p, g, m] = [before("param"), before("grad"), before("expAvg")];
      const steps = update(records, gate === 1, (i, at, { learningRate, weightDecay, settings: [beta1, beta2] }) => {
        const [grad, old] = [pick(g, i), pick(m, at)];
        const direction = fround(fround(old * fround(beta1)) + fround(grad * fround(1 - beta1)));
        const decayed = fround(pick(p, i) * fround(1 - learningRate * weightDecay));
        p[i] = fround(decayed - Math.sign(direction) * fround(learningRate));
        m[at] = fround(fround(old * fround(beta2)) + fround(fround(1 - beta2) * grad));
      });
      return { param: { values: p }, expAvg: { values: m }, steps: { values: steps } };
    },
  };
});

const lerp: CasesOf<"lerp"> = GATES.flatMap((gate) =>
  [undefined, 0.25].flatMap((factor) =>
    [0, 0.05, 0.5, 0.95, 1].map((weight) => ({
      label: `gate ${gate}, weight ${weight} x ${factor}`,
      args: { n: 37, weight },
      arrays: { ...gateArray(gate), ...factor === undefined ? {} : { factor: [factor] } },
      without: [...gate === undefined ? ["gate" as const] : [], ...factor === undefined ? ["factor" as const] : []],
      expect: (before) => {
        const share = factor === undefined ? fround(weight) : fround(fround(weight) * factor);
        const src = before("src");
        const values = before("dst").map((old, i) => {
          if (gate === 1) return old;
          const difference = fround(pick(src, i) - old);
          if (share < 0.5) return fround(old + fround(share * difference));
          return fround(pick(src, i) - fround(difference * fround(1 - share)));
        });
        return { dst: { values } };
      },
    }))
  )
);

const sumRanks: CasesOf<"sumRanks"> = [
  ...FLOATS.flatMap(({ dtype }) =>
    [...new Set([float32, dtype])].flatMap((dstDtype) =>
      [0, 1, 5, 16, 39, 205].flatMap((n) =>
        [1, 2, 3, 5].flatMap((count) =>
          [undefined, 0.3].flatMap((scale) =>
            [false, true].map((accumulate): CasesOf<"sumRanks">[number] => ({
              args: { dtype, dstDtype, n, accumulate, pastCaches: n > 16 },
              count,
              ...scale === undefined ? { without: ["scale"] } : { arrays: { scale: [scale] } },
              expect: (before) => {
                const sources = each(count, (s) => s).map((s) => before("sources", s));
                const old = before("dst");
                const values = each(n, (i) => {
                  const total = sources.slice(1).reduce(
                    (sum, source) => fround(sum + pick(source, i)),
                    pick(sources[0] ?? [], i),
                  );
                  const value = fround(total * fround(scale ?? 1));
                  return accumulate ? fround(pick(old, i) + value) : value;
                });
                return { dst: { values: values.map(rounding(dstDtype)) } };
              },
            }))
          )
        )
      )
    )
  ),
  ...[false, true].map((accumulate): CasesOf<"sumRanks">[number] => ({
    args: { dtype: int64, dstDtype: int64, n: 3, accumulate, pastCaches: false },
    count: 2,
    without: ["scale"],
    arrays: { sources: { low: -1e6, high: 1e6 }, dst: [5, -7, 0] },
    expect: (before) => {
      const [a, b, old] = [before("sources", 0), before("sources", 1), before("dst")];
      return { dst: { values: a.map((v, i) => v + pick(b, i) + (accumulate ? pick(old, i) : 0)) } };
    },
  })),
];

/** The block of the stream of a key that holds an element. */
function streamBlock(key: number, element: number): bigint[] {
  const place = BigInt(Math.floor(element / 4));
  const word = 2n ** 32n;
  return philox([place % word, place / word, 0n, 0n], [BigInt(key) % word, BigInt(key) / word]);
}

const STREAMS = [[0, 0], [2 ** 53 - 1, 2 ** 53 - 64], [123456789012, 7]] as const;

const uniform: CasesOf<"uniform"> = STREAMS.map(([key, offset]) => ({
  args: { n: 29, key, offset, low: 0, high: 1 },
  expect: () => {
    const values = each(29, (i) => Number((streamBlock(key, offset + i)[(offset + i) % 4] ?? 0n) >> 8n) / 2 ** 24);
    return { dst: { values } };
  },
}));

const normal: CasesOf<"normal"> = STREAMS.map(([key, offset]) => ({
  args: { n: 61, key, offset, mean: 0, std: 1 },
  expect: () => {
    // Box-Muller on the words of each half block.
    const values = each(61, (i) => {
      const [block, place] = [streamBlock(key, offset + i).map(Number), (offset + i) % 4];
      const half = Math.floor(place / 2) * 2;
      const radius = Math.sqrt(-2 * Math.log((pick(block, half) + 0.5) / 2 ** 32));
      const angle = 2 * Math.PI * Math.floor(pick(block, half + 1) / 256) / 2 ** 24;
      return radius * (place % 2 === 0 ? Math.cos(angle) : Math.sin(angle));
    });
    return { dst: { values, relative: 2e-6, absolute: 2e-6 } };
  },
}));

/** Cases of kernels of training, those of the norm apart. */
export const TRAINING_CASES: Cases<
  | "adamw"
  | "sgd"
  | "lion"
  | "lerp"
  | "sumRanks"
  | "uniform"
  | "normal"
> = {
  adamw,
  sgd,
  lion,
  lerp,
  sumRanks,
  uniform,
  normal,
};

/** Further tests of random numbers, and of functions of host numbers. */
export const TRAINING_PROPERTIES: Properties = {
  "PortableMath agrees with float64 and has the same bits wherever it runs": ({ device: { math } }) => {
    for (const x of [1e-300, 1e-5, 0.1, 0.5, 1, 2, 3.7, 10, 100, 700]) {
      const got = [math.exp(x), math.log(x), math.sin(x), math.cos(x)];
      close(got, [Math.exp(x), Math.log(x), Math.sin(x), Math.cos(x)], 4e-16, 1e-16, `${x}`);
      close([math.pow(x, 0.3), math.pow(x, -0.999)], [x ** 0.3, x ** -0.999], 5e-16, 0, `pow ${x}`);
    }
    assert.deepEqual([math.log(0), math.exp(1000)], [-Infinity, Infinity]);
    // Bits fixed here, so that a change of library or compiler shows.
    assert.deepEqual([math.exp(0.1), math.log(3), math.sin(1e6), math.cos(0.5), math.pow(0.9, 100)], [
      1.1051709180756477,
      1.0986122886681096,
      -0.34999350217129294,
      0.8775825618903728,
      0.000026561398887587544,
    ]);
  },
  "philox() of this test gives the published answer": () => {
    assert.deepEqual(philox([0n, 0n, 0n, 0n], [0n, 0n]), [0x6627e8d5n, 0xe169c58dn, 0xbc57ac4cn, 0x9b00dbd8n]);
  },
  "uniform() and normal() do not depend on how the stream is cut": (bed) => {
    const draws = {
      uniform: (n: number, key: number, offset: number, dst: DevicePtr) =>
        bed.device.kernels.uniform({ n, key, offset, low: -1, high: 2, dst }),
      normal: (n: number, key: number, offset: number, dst: DevicePtr) =>
        bed.device.kernels.normal({ n, key, offset, mean: -1, std: 2, dst }),
    };
    for (const [name, draw] of Object.entries(draws)) {
      const [whole, parts] = [bed.room(float32, 100), bed.room(float32, 100)];
      draw(100, 42, 1000, whole);
      for (const cut of [1, 2, 3, 5, 8, 13]) {
        for (let i = 0; i < 100; i += cut) draw(Math.min(cut, 100 - i), 42, 1000 + i, devicePtr(parts + 4 * i));
        assert.deepEqual(bed.bytes(parts, 400), bed.bytes(whole, 400), `${name} cut by ${cut}`);
      }
      draw(100, 43, 1000, parts);
      assert.notDeepEqual(bed.bytes(parts, 400), bed.bytes(whole, 400), `${name} of another key`);
    }
  },
  "uniform() stays below its upper end and has the right moments": (bed) => {
    const [n, dst] = [200_000, bed.room(float32, 200_000)];
    bed.device.kernels.uniform({ n, key: 7, offset: 0, low: -3, high: 5, dst });
    const x = bed.get(float32, dst, n);
    assert.ok(x.every((v) => v >= -3 && v < 5));
    close([sum(n, (i) => pick(x, i)) / n], [1], 0, 0.03, "mean");
    close([sum(n, (i) => (pick(x, i) - 1) ** 2) / n], [64 / 12], 0.02, 0, "variance");
    const high = 1 + 2 ** -22; // the step is finer than the result's
    bed.device.kernels.uniform({ n, key: 7, offset: 0, low: 1, high, dst });
    assert.ok(bed.get(float32, dst, n).every((v) => v >= 1 && v < high));
  },
  "normal() has the right moments and tails": (bed) => {
    const [n, dst] = [200_000, bed.room(float32, 200_000)];
    bed.device.kernels.normal({ n, key: 11, offset: 0, mean: 0, std: 1, dst });
    const x = bed.get(float32, dst, n);
    const moment = (power: number): number => sum(n, (i) => pick(x, i) ** power) / n;
    close([moment(1), moment(2), moment(3), moment(4)], [0, 1, 0, 3], 0.02, 0.02, "moments");
    assert.ok(Math.max(...x.slice(0, 100_000)) > 3.5);
    bed.device.kernels.normal({ n, key: 11, offset: 0, mean: 5, std: 0.5, dst });
    assert.deepEqual(bed.get(float32, dst, n), x.map((v) => fround(fround(v * 0.5) + 5)));
  },
};
