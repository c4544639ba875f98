/**
 * Shapes, strides and broadcasting.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ShapeError } from "../src/errors.ts";
import {
  broadcastShapes,
  broadcastStrides,
  denseLayout,
  denseStrides,
  isDense,
  normalizeDim,
  numelOf,
  resolveShape,
  sameShape,
  threeSizes,
  twoSizes,
} from "../src/shape.ts";

test("numelOf(), denseStrides() and sameShape() of scalars, empty and other shapes", () => {
  assert.deepEqual([numelOf([]), numelOf([3]), numelOf([2, 0, 3]), numelOf([2, 3, 4])], [1, 3, 0, 24]);
  assert.deepEqual(denseStrides([2, 3, 4]), [12, 4, 1]);
  assert.deepEqual(denseStrides([]), []);
  assert.ok(sameShape([2, 3], [2, 3]) && !sameShape([2, 3], [3, 2]) && !sameShape([2], [2, 1]));
});

test("isDense() looks at strides of dims that have more than one index only", () => {
  assert.ok(isDense(denseLayout([2, 3], 7)));
  assert.ok(isDense({ shape: [1, 3], strides: [99, 1], offset: 0 }));
  assert.ok(isDense({ shape: [], strides: [], offset: 3 }));
  assert.ok(!isDense({ shape: [3, 2], strides: [1, 3], offset: 0 }));
  assert.ok(!isDense({ shape: [2, 3], strides: [4, 1], offset: 0 }));
  assert.ok(!isDense({ shape: [2], strides: [0], offset: 0 }));
});

test("broadcastShapes() follows NumPy's rule and names both shapes when it cannot", () => {
  const cases = [[[], [2], [2]], [[3, 1], [1, 4], [3, 4]], [[5, 1, 2], [7, 1], [5, 7, 2]], [[0], [1], [0]], [[1, 0], [
    3,
    1,
  ], [3, 0]]];
  for (const [a = [], b = [], expected = []] of cases) {
    assert.deepEqual(broadcastShapes("add", a, b), expected);
    assert.deepEqual(broadcastShapes("add", b, a), expected);
  }
  assert.throws(() => broadcastShapes("add", [2, 3], [2]), ShapeError);
  assert.throws(
    () => broadcastShapes("add", [0], [2]),
    /'add' as dims must be equal or 1 to broadcast: shapes \[0\] and \[2\]/,
  );
});

test("broadcastStrides() repeats by stride 0", () => {
  assert.deepEqual(broadcastStrides(denseLayout([3, 1]), [2, 3, 4]), [0, 1, 0]);
  assert.deepEqual(broadcastStrides(denseLayout([]), [2]), [0]);
  assert.deepEqual(broadcastStrides({ shape: [3, 4], strides: [1, 3], offset: 0 }, [3, 4]), [1, 3]);
  for (const [from, to] of [[[3], [4]], [[2, 3], [3]], [[2, 3], [2, 1]], [[4, 1], [2, 3]]] as const) {
    assert.throws(() => broadcastStrides(denseLayout(from), to), {
      name: "InternalError",
      message: /is not broadcast to/,
    });
  }
});

test("normalizeDim() counts from the back when negative, and refuses others", () => {
  assert.deepEqual([normalizeDim("sum", 0, [2, 3]), normalizeDim("sum", -1, [2, 3]), normalizeDim("sum", -2, [2, 3])], [
    0,
    1,
    0,
  ]);
  for (const dim of [2, -3, 0.5, NaN]) assert.throws(() => normalizeDim("sum", dim, [2, 3]), ShapeError);
  assert.throws(() => normalizeDim("sum", 0, []), ShapeError);
});

test("resolveShape() works out one -1, and refuses another number of elements", () => {
  assert.deepEqual(resolveShape("reshape", [2, 3, 4], [-1, 4]), [6, 4]);
  assert.deepEqual(resolveShape("reshape", [6], [2, 3]), [2, 3]);
  assert.deepEqual(resolveShape("reshape", [], [1, -1]), [1, 1]);
  assert.deepEqual(resolveShape("reshape", [0, 3], [3, -1]), [3, 0]);
  for (const to of [[4], [-1, 4], [-1, -1], [-2, -3], [6, 1.0001], [-1, 0], [NaN]]) {
    assert.throws(() => resolveShape("reshape", [6], to), ShapeError, `${to}`);
  }
});

test("twoSizes() and threeSizes() give as many sizes as they say, and make none up", () => {
  assert.deepEqual(twoSizes("linear", [3, 0]), [3, 0]);
  assert.deepEqual(threeSizes("rope", [2, 1, 8]), [2, 1, 8]);
  for (const shape of [[], [3], [3, 4, 5]]) assert.throws(() => twoSizes("linear", shape), ShapeError);
  for (const shape of [[], [3, 4], [1, 2, 3, 4]]) assert.throws(() => threeSizes("rope", shape), ShapeError);
  assert.throws(() => twoSizes("linear", [3], "the weight must have two dims"), {
    message: "Cannot apply 'linear' as the weight must have two dims: shapes [3]",
  });
});
