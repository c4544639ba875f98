/**
 * Comparisons, choices by a mask and powers: every layout, ends of ranges, and what is refused.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { full, where, zeros } from "../../doors/nn.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float16, float64, int32, uint8 } from "../../src/dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../../src/errors.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { gradcheckLayouts } from "../support/gradcheck.ts";
import { at, build, map, zip } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });
const list = (x: Tensor): number[] => [...x.toArray()];

test("comparisons give uint8 masks of any layout and any dtype, and have no gradient", () => {
  using _frame = scope();
  for (const dtype of [undefined, bfloat16, float16, int32, uint8]) {
    const options = dtype === undefined ? {} : { dtype };
    const x = tensor(device, [1, 2, 3, 4, 5, 6], { shape: [2, 3], ...options });
    const mask = x.transpose(0, 1).ge(tensor(device, [2, 5], options));
    assert.equal(mask.dtype, uint8);
    assert.deepEqual(mask.shape, [3, 2]);
    assert.deepEqual(list(mask), [0, 0, 1, 1, 1, 1]);
    assert.deepEqual(list(x.narrow(1, 1, 2).eq(3)), [0, 1, 0, 0]);
    assert.deepEqual(list(x.gt(2).logicalAnd(x.lt(5))), [0, 0, 1, 1, 0, 0]);
    assert.deepEqual(list(x.le(1).logicalOr(x.ne(6).logicalNot())), [1, 0, 0, 0, 0, 1]);
  }
  assert.equal(zeros(device, [0, 3]).eq(1).numel, 0);
  assert.equal(full(device, [], 3).eq(3).item(), 1);
  assert.equal(tensor(device, [1, 0, 1]).eq(1).to(bfloat16).mean().dtype, bfloat16, "an accuracy is a mean of a mask");
});

test("comparisons refuse dtypes that differ, shapes that do not broadcast, and numbers that a dtype does not hold", () => {
  using _frame = scope();
  const ids = tensor(device, [1, 2], { dtype: int32 });
  assert.throws(() => ids.eq(zeros(device, [2])), /'eq' as both must have one dtype: dtypes int32 and float32/);
  assert.throws(() => ids.lt(zeros(device, [3], int32)), ShapeError);
  assert.throws(
    () => ids.lt(2.5),
    (error) =>
      error instanceof ArgumentError &&
      error.message === "Cannot apply 'lt' to int32 and 2.5: give a value that int32 holds, or cast by to(float32)",
  );
  assert.throws(() => zeros(device, [1], uint8).ge(256), /'ge' to uint8 and 256/);
  assert.throws(
    () => zeros(device, [1], float64).eq(0),
    /'eq' as the dtype must be float32, bfloat16, float16, int32, uint8/,
  );
});

test("where() and maskedFill(): value and gradient in every layout", () => {
  const mask = (): Tensor => tensor(device, [1, 0, 1, 0, 0, 1], { shape: [2, 3], dtype: uint8 });
  const chosen = build([2, 3], (index) => Number([[1, 0, 1], [0, 0, 1]][index[0] ?? 0]?.[index[1] ?? 0]));
  gradcheckLayouts(device, {
    label: "where",
    run: (x, y) => where(mask(), x, y),
    reference: (x, y) => build([2, 3], (index) => at(chosen, index) === 1 ? at(x, index) : at(y, index)),
  }, [[2, 3], [3]]);
  gradcheckLayouts(device, {
    label: "maskedFill in bf16",
    run: (x) => x.maskedFill(mask().transpose(0, 1), 2),
    reference: (x) => build([3, 2], (index) => at(chosen, index.toReversed()) === 1 ? 2 : at(x, index)),
    dtype: bfloat16,
  }, [[3, 2]]);
});

test("where() lets nothing of what was not chosen through, and takes a number on either side", () => {
  using _frame = scope();
  const x = tensor(device, [-1, 4]);
  assert.deepEqual(list(where(x.gt(0), x.sqrt(), 0)), [0, 2]);
  const ids = tensor(device, [1, 2, 3], { dtype: int32 });
  assert.deepEqual(list(where(ids.eq(2), -100, ids)), [1, -100, 3]);
  assert.deepEqual(list(zeros(device, [2]).maskedFill(full(device, [], 1, uint8), -Infinity)), [-Infinity, -Infinity]);
});

test("where() refuses conditions that are no masks and values that do not fit", () => {
  using _frame = scope();
  const [x, mask] = [zeros(device, [2, 3]), zeros(device, [3], uint8)];
  assert.throws(() => where(x, x, x), /'where' as the condition must be uint8, as comparisons give: dtypes float32/);
  assert.throws(() => where(mask, x, zeros(device, [3], bfloat16)), DTypeError);
  assert.throws(() => where(mask, x, zeros(device, [2])), ShapeError);
  assert.throws(() => where(zeros(device, [2], uint8), x, 1), ShapeError);
  assert.throws(() => where(mask, zeros(device, [3], int32), 0.5), /'where' to int32 and 0.5/);
  assert.throws(() => where(mask, 1, 0), /'where' to two numbers: make one of them a tensor, which says the dtype/);
});

test("pow(): value and gradient in every layout, of powers of tensors and of numbers", () => {
  gradcheckLayouts(
    device,
    { label: "pow", run: (x, y) => x.pow(y), reference: (x, y) => zip(x, y, (a, b) => a ** b) },
    [[2, 3], [2, 3]],
    0.3,
    2,
  );
  for (const exponent of [2, 3, -1, 0.5]) {
    gradcheckLayouts(
      device,
      { label: `pow ${exponent}`, run: (x) => x.pow(exponent), reference: (x) => map(x, (v) => v ** exponent) },
      [[2, 3]],
      0.3,
      2,
    );
  }
});

test("clamp() with one limit, maximum() and minimum() with a number", () => {
  using _frame = scope();
  const x = tensor(device, [-2, 0, 2]);
  assert.deepEqual(list(x.clamp(-1)), [-1, 0, 2]);
  assert.deepEqual(list(x.clamp(-Infinity, 1)), [-2, 0, 1]);
  assert.deepEqual([list(x.maximum(1)), list(x.minimum(-1))], [[1, 1, 2], [-2, -1, -1]]);
});
