/** The figures that `npm run bench -- kernels` computes from a kernel's work. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ratesOf, readWorks } from "../../bench/kernels.ts";
import { workOf } from "../../bench/ranks/work.ts";
import { devicePtr } from "../../src/device/device.ts";
import { bfloat16, float32 } from "../../src/dtype.ts";

const ptr = devicePtr(64);

test("workOf() counts what kernels calculate and move, and computes nothing", () => {
  const add = workOf(({ binary }) =>
    binary({ dtype: float32, op: "add", shape: [1000], aStrides: [1], bStrides: [1], dst: ptr, a: ptr, b: ptr })
  );
  assert.deepEqual(add, { flops: 1000, bytes: 12_000 });
  const swiglu = workOf(({ swiglu }) => {
    swiglu({ dtype: bfloat16, n: 100, y: ptr, gate: ptr, up: ptr });
    swiglu({ dtype: bfloat16, n: 100, y: ptr, gate: ptr, up: ptr });
  });
  assert.deepEqual(swiglu, { flops: 1000, bytes: 1200 });
});

test("workOf() counts what is updated as read and written", () => {
  const args = { n: 100, numStates: 100, numRecords: 0 };
  const { bytes } = workOf(({ adamw }) =>
    adamw({ ...args, param: ptr, grad: ptr, expAvg: ptr, expAvgSq: ptr, records: ptr, steps: ptr })
  );
  // Parameter and both states twice, the gradient once.
  assert.equal(bytes, 7 * 400);
});

test("readWorks() finds the lines of work among others", () => {
  assert.deepEqual(readWorks("native-add 3.5\nwork-add 1000 12000\n"), [["add", [1000, 12_000]]]);
});

test("ratesOf() compares with the peak that is nearer", () => {
  const rates = ratesOf([1e6, 3e6], 100, { flops: 100, bytes: 60 });
  assert.deepEqual(rates, { "GFLOP/s": 10, "peak GFLOP/s": 100, "GB/s": 30, "peak GB/s": 60, ofPeak: 0.5 });
});
