/** The work of a step that is taken to overlap, on steps of a few calls. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { CollectiveUse } from "../../src/train/dry_run.ts";
import { predictStages, predictTime } from "../../src/train/timeline.ts";

/** A call that takes `received` seconds, once this many operations are done. */
function call(
  kind: CollectiveUse["kind"],
  phase: CollectiveUse["phase"],
  flopsBefore: number,
  received: number,
): CollectiveUse {
  return { kind, phase, flopsBefore, received, unit: "unit", bytes: received, hosts: 1 };
}

const speeds = { flops: 1, bandwidth: 0.5, hostBandwidth: 1 };

test("a unit is gathered while the one before computes; the first one is waited for", () => {
  const collectives = [
    call("gather", "forward", 0, 3),
    call("gather", "forward", 10, 4),
    call("gather", "forward", 20, 12),
  ];
  // 3 for the first; the second is hidden, the third is gathered from 13 on, for 12 beside 10.
  assert.deepEqual(predictTime({ collectives, flops: 30 }, speeds), {
    step: 3 + 10 + 12 + 10,
    compute: 30,
    communication: 19,
    exposed: 5,
  });
});

test("reductions of the backward run beside compute, sums that the step reads do not", () => {
  const reduce = call("reduce-scatter", "backward", 10, 4);
  assert.equal(predictTime({ collectives: [reduce], flops: 20 }, speeds).step, 20);
  assert.equal(predictTime({ collectives: [reduce], flops: 12 }, speeds).step, 14);
  const norm = call("all-reduce", undefined, 10, 4);
  assert.equal(predictTime({ collectives: [reduce, norm], flops: 20 }, speeds).step, 10 + 4 + 4 + 10);
});

test("a message hides behind what is computed until it is waited for, and not behind what follows", () => {
  const message = { ...call("send and receive", undefined, 10, 4), flopsAwaited: 13 };
  // 3 of 4 are hidden.
  assert.equal(predictTime({ collectives: [message], flops: 30 }, speeds).step, 31);
  assert.equal(predictTime({ collectives: [{ ...message, flopsAwaited: 10 }], flops: 30 }, speeds).step, 34);
  assert.equal(predictTime({ collectives: [{ ...message, flopsAwaited: 30 }], flops: 30 }, speeds).step, 30);
  // The next one begins when the first has been waited for, after 14.
  const next = { ...call("send and receive", undefined, 13, 4), flopsAwaited: 23 };
  assert.equal(predictTime({ collectives: [message, next], flops: 30 }, speeds).step, 31);
});

test("ranks of other hosts are reached at their own speed", () => {
  const away = { ...call("gather", "forward", 0, 3), hosts: 2 };
  assert.equal(predictTime({ collectives: [away], flops: 1 }, speeds).step, 7);
  assert.equal(predictTime({ collectives: [], flops: 8 }, { ...speeds, flops: 4 }).step, 2);
});

test("ranks of a model in stages wait for the slowest stage in slots in which they have nothing to compute", () => {
  const collectives = [call("send and receive", undefined, 4, 1)];
  const [first, second] = [{ collectives, flops: 8 }, { collectives, flops: 12 }].map((one) =>
    predictTime(one, speeds)
  );
  assert.ok(first !== undefined && second !== undefined);
  // 4 micro-batches by 1F1B over 2 ranks: 8 of 10 slots.
  assert.deepEqual(predictStages([first, second], first, { slots: 10, busy: 8 }), {
    step: 13 * 10 / 8,
    compute: 8,
    communication: 1,
    exposed: 13 * 10 / 8 - 8,
  });
});
