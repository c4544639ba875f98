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
    // transformers counts the step before the first as one: its rate is 0, or not used.
    const factors = SCHEDULES[schedule]({ warmupSteps: warmup, steps: Math.max(warmup, total - 1) });
    const got = rates.map((_, step) => 0.3 * factors.factorAt(math, step));
    allClose(got, rates, { relative: 1e-12, absolute: 1e-15 }, "rates");
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

test("schedules refuse steps that make no sense", () => {
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
