/**
 * Losses of regressions and of yes or no, and rotary embeddings: their ends, and what is refused.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Tensor, tensor } from "../../mod.ts";
import { binaryCrossEntropyWithLogits, l1Loss, mseLoss, rope, zeros } from "../../doors/nn.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, int32 } from "../../src/dtype.ts";
import { DTypeError } from "../../src/errors.ts";
import { scope } from "../../src/tensor/scope.ts";
import { allClose } from "../support/allclose.ts";

const device = await openDevice("cpu", { memoryBytes: 2 ** 24 });

test("losses broadcast nothing, for a column less a row would be a matrix of errors", () => {
  using _frame = scope();
  for (const loss of [mseLoss, l1Loss, binaryCrossEntropyWithLogits]) {
    assert.throws(
      () => loss(zeros(device, [4, 1]), zeros(device, [4])),
      new RegExp(`'${loss.name}' as input and target must have one shape: shapes \\[4, 1\\] and \\[4\\]`),
    );
    assert.throws(() => loss(zeros(device, [4]), zeros(device, [4], bfloat16)), DTypeError);
  }
});

test("binaryCrossEntropyWithLogits() neither overflows nor loses what is nearly certain", () => {
  using _frame = scope();
  const logits = tensor(device, [200, -200, 200, -200, 30]);
  const losses = binaryCrossEntropyWithLogits(logits, tensor(device, [1, 0, 0, 1, 1]), "none");
  allClose(losses.toArray(), [0, 0, 200, 200, Math.exp(-30)], { relative: 1e-6, absolute: 1e-40 }, "losses");
});

test("losses leave nothing but their result, in a scope or not", () => {
  using x = tensor(device, [1, 2]);
  using y = tensor(device, [3, 5]);
  const before = device.allocator.stats.inUse;
  const loss = mseLoss(x, y);
  assert.equal(loss.item(), 6.5);
  loss.dispose();
  assert.equal(device.allocator.stats.inUse, before);
});

test("rope() refuses tables of two shapes, and positions that the tables do not hold", () => {
  using _frame = scope();
  const table = (rows: number): Tensor => zeros(device, [rows, 1]);
  const x = zeros(device, [1, 1, 2]);
  assert.throws(() => rope(x, table(2), table(1), 2), /both tables must have one shape/);
  const far = tensor(device, [7], { shape: [1, 1], dtype: int32 });
  assert.throws(() => rope(x, table(2), table(2), 2, far), /Cannot use position 7: positions must be in \[0, 2\)/);
});
