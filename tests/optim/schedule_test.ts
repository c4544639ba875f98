/**
 * Learning-rate schedules against transformers' (`tests/parity/make_optim.py`).
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { openDevice } from "../../src/device/registry.ts";
import { ArgumentError } from "../../src/errors.ts";
import { constant, cosine, linear, SCHEDULE_NAMES, scheduleFactor, SCHEDULES } from "../../src/optim/schedule.ts";
import { allClose } from "../support/allclose.ts";
import { readJson } from "../support/golden.ts";

const { math } = await openDevice("cpu", { memoryBytes: 16 * 2 ** 20 });
const { schedules } = z.object({
  schedules: z.array(z.object({
    schedule: z.enum(SCHEDULE_NAMES),
    warmup: z.number(),
    total: z.number(),
    rates: z.array(z.number()),
  })),
}).parse(readJson("optim/expected.json"));

test("every schedule is compared with transformers'", () => {
  assert.deepEqual(new Set(schedules.map(({ schedule }) => schedule)), new Set(SCHEDULE_NAMES));
});

for (const { schedule, warmup, total, rates } of schedules) {
  test(`${schedule}(), ${warmup} of ${total} steps of warm-up, is transformers'`, () => {
    // transformers counts from 0. A warm-up has the rate 0 there, and no step here.
    const first = warmup === 0 ? 0 : 1;
    const steps = Math.max(1, warmup, total - first);
    const options = { cycles: 3, power: 2, decaySteps: warmup < total ? Math.floor(total / 4) : 0 };
    const floor = schedule === "polynomial" ? { minRatio: 0.1 } : {};
    const factors = SCHEDULES[schedule]({ warmupSteps: warmup, steps, ...options, ...floor });
    const got = rates.slice(first).map((_, i) => 0.3 * factors.factorAt(math, i + 1));
    allClose(got, rates.slice(first), { relative: 1e-12, absolute: 1e-15 }, "rates");
  });
}

test("cosine() and linear() fall from 1 to an end that minRatio raises, and stay there", () => {
  for (const schedule of [cosine, linear]) {
    const { factorAt } = schedule({ warmupSteps: 3, steps: 20, minRatio: 0.1 });
    assert.deepEqual([1, 2, 3].map((step) => factorAt(math, step)), [1 / 3, 2 / 3, 1]);
    assert.ok(factorAt(math, 20) > 0.1, "the last step counts");
    for (const step of [21, 22, 1000]) allClose([factorAt(math, step)], [0.1], { relative: 1e-12, absolute: 0 }, "end");
    const factors = Array.from({ length: 18 }, (_, i) => factorAt(math, i + 3));
    assert.ok(factors.every((factor, i) => i === 0 || factor < (factors[i - 1] ?? 0)));
  }
  assert.equal(constant({ steps: 5 }).factorAt(math, 1), 1);
});

test("short schedules: the first step without a warm-up has the whole rate, and no step has none", () => {
  const factors = (name: typeof SCHEDULE_NAMES[number], steps: number, warmupSteps: number): number[] => {
    const { factorAt } = SCHEDULES[name]({ steps, warmupSteps });
    return Array.from({ length: steps }, (_, i) => factorAt(math, i + 1));
  };
  const half = (angle: number): number => 0.5 * (1 + Math.cos(angle));
  const cases: readonly (readonly [typeof SCHEDULE_NAMES[number], number, number, readonly number[]])[] = [
    ["cosine", 1, 0, [1]],
    ["linear", 1, 0, [1]],
    ["constant", 1, 0, [1]],
    ["cosine", 1, 1, [1]],
    ["linear", 1, 1, [1]],
    ["cosine", 2, 0, [1, 0.5]],
    ["linear", 2, 0, [1, 0.5]],
    ["linear", 2, 1, [1, 0.5]],
    ["linear", 2, 2, [0.5, 1]],
    ["cosine", 3, 0, [1, half(Math.PI / 3), half(2 * Math.PI / 3)]],
    ["linear", 4, 0, [1, 0.75, 0.5, 0.25]],
    ["linear", 4, 2, [0.5, 1, 2 / 3, 1 / 3]],
    ["cosine", 3, 3, [1 / 3, 2 / 3, 1]],
    ["constant", 3, 2, [0.5, 1, 1]],
  ];
  for (const [name, steps, warmup, expected] of cases) {
    const label = `${name} of ${steps} steps, ${warmup} to warm up`;
    allClose(factors(name, steps, warmup), expected, { relative: 1e-12, absolute: 0 }, label);
  }
  for (const name of SCHEDULE_NAMES) {
    for (let steps = 1; steps <= 12; steps++) {
      for (let warmup = 0; warmup <= steps; warmup++) {
        const all = factors(name, steps, warmup);
        assert.ok(all.every((factor) => factor > 0 && factor <= 1), `${name} ${steps} ${warmup}`);
        assert.equal(all[Math.max(0, warmup - 1)], 1, "the whole rate at the end of the warm-up");
      }
    }
  }
});

test("schedules refuse steps that make no sense", () => {
  for (const steps of [0, -1, 0.5, 1.5, Infinity, NaN]) {
    assert.throws(() => cosine({ steps }), ArgumentError, `${steps}`);
  }
  for (const warmupSteps of [0.5, NaN, Infinity, 5]) {
    assert.throws(() => cosine({ warmupSteps, steps: 4 }), ArgumentError, `${warmupSteps}`);
  }
  for (const minRatio of [-0.1, 1.1, NaN]) {
    assert.throws(() => linear({ steps: 4, minRatio }), ArgumentError, `${minRatio}`);
  }
  assert.throws(() => cosine({ warmupSteps: 5, steps: 4 }), /warm up for 5 of 4 steps/);
  assert.throws(() => linear({ warmupSteps: -1, steps: 4 }), ArgumentError);
  assert.throws(() => constant({ steps: NaN }), ArgumentError);
});

test("scheduleFactor() takes a function, and refuses what gives no finite number", () => {
  assert.equal(scheduleFactor((step) => 0.5 ** step, math, 3), 0.125);
  assert.equal(scheduleFactor(constant({ steps: 5 }), math, 3), 1);
  const refused: readonly (readonly [unknown, RegExp])[] = [
    [() => NaN, /learning rate of step 2: the schedule gives NaN\. Expected a finite factor/],
    [() => undefined, /the schedule gives undefined/],
    [(steps: number) => cosine({ steps }), /the schedule gives no number\. .* as in cosine\(\{ steps: 200 \}\)/],
    ["cosine", /Cannot use 'cosine' as a schedule: expected cosine\(\{ steps \}\), linear, constant, or a function/],
    [{}, /Cannot use '\[object Object\]' as a schedule/],
  ];
  for (const [schedule, message] of refused) {
    assert.throws(() => Reflect.apply(scheduleFactor, undefined, [schedule, math, 2]), (error) => {
      assert.ok(error instanceof ArgumentError);
      assert.match(error.message, message);
      return true;
    });
  }
});
