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
import { learningRateAt, type ScheduleOptions, SCHEDULES } from "../../src/optim/schedule.ts";
import { allClose } from "../support/allclose.ts";
import { readJson } from "../support/golden.ts";

const { math } = await openDevice("cpu", { memoryBytes: 16 * 2 ** 20 });
const { schedules } = z.object({
  schedules: z.array(z.object({
    schedule: z.enum(SCHEDULES),
    warmup: z.number(),
    total: z.number(),
    rates: z.array(z.number()),
  })),
}).parse(readJson("optim/expected.json"));

for (const { schedule, warmup, total, rates } of schedules) {
  test(`learningRateAt() '${schedule}', ${warmup} of ${total} steps of warm-up, is transformers'`, () => {
    const options: ScheduleOptions = { schedule, peakLearningRate: 0.3, warmupSteps: warmup, totalSteps: total };
    const got = rates.map((_, step) => learningRateAt(math, step, options));
    allClose(got, rates, { relative: 1e-12, absolute: 1e-15 }, "rates");
  });
}

test("learningRateAt() stays at its end, which minRatio raises", () => {
  for (const schedule of ["cosine", "linear"] as const) {
    const options: ScheduleOptions = { schedule, peakLearningRate: 2, warmupSteps: 3, totalSteps: 20, minRatio: 0.1 };
    assert.equal(learningRateAt(math, 3, options), 2);
    for (const step of [20, 21, 1000]) {
      allClose([learningRateAt(math, step, options)], [0.2], { relative: 1e-12, absolute: 0 }, schedule);
    }
    const rates = Array.from({ length: 17 }, (_, i) => learningRateAt(math, i + 3, options));
    assert.ok(rates.every((rate, i) => i === 0 || rate < (rates[i - 1] ?? 0)));
  }
});

test("learningRateAt() refuses steps that make no sense", () => {
  const options: ScheduleOptions = { schedule: "cosine", peakLearningRate: 1, warmupSteps: 5, totalSteps: 4 };
  assert.throws(() => learningRateAt(math, 0, options), /warm up for 5 of 4 steps/);
  assert.throws(() => learningRateAt(math, 0, { ...options, warmupSteps: -1 }), ArgumentError);
  assert.throws(() => learningRateAt(math, 0, { ...options, warmupSteps: 0, totalSteps: NaN }), ArgumentError);
});
