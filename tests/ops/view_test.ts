/**
 * Views: their values, gradients through chains of them, sharing of memory, and refusals.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, int32 } from "../../src/dtype.ts";
import { ShapeError } from "../../src/errors.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { gradcheck, gradcheckLayouts } from "../support/gradcheck.ts";
import { expand, map, narrow, permute, random, reshape, zip } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });

test("reshape(), permute(), transpose(), narrow(), expand(), contiguous(): value and gradient in every layout", () => {
  gradcheckLayouts(device, { label: "reshape", run: (x) => x.reshape([4, -1]), reference: (x) => reshape(x, [4, 6]) }, [
    [2, 3, 4],
  ]);
  gradcheckLayouts(device, {
    label: "permute",
    run: (x) => x.permute([2, 0, 1]),
    reference: (x) => permute(x, [2, 0, 1]),
  }, [[2, 3, 4]]);
  gradcheckLayouts(device, {
    label: "transpose",
    run: (x) => x.transpose(-1, 0),
    reference: (x) => permute(x, [2, 1, 0]),
  }, [[2, 3, 4]]);
  gradcheckLayouts(device, { label: "narrow", run: (x) => x.narrow(1, 1, 2), reference: (x) => narrow(x, 1, 1, 2) }, [[
    2,
    3,
    4,
  ]]);
  gradcheckLayouts(device, {
    label: "narrow to none",
    run: (x) => x.narrow(-1, 4, 0),
    reference: (x) => narrow(x, 2, 4, 0),
  }, [[2, 3, 4]]);
  gradcheckLayouts(device, {
    label: "expand",
    run: (x) => x.expand([5, 2, 3, 4]),
    reference: (x) => expand(x, [5, 2, 3, 4]),
  }, [[2, 1, 4]]);
  gradcheckLayouts(device, { label: "contiguous", run: (x) => x.contiguous(), reference: (x) => x }, [[2, 3, 4]]);
  gradcheck(device, {
    label: "expand a scalar",
    inputs: [random([], 1)],
    run: (x) => x.expand([2, 3]),
    reference: (x) => expand(x, [2, 3]),
  });
});

test("views of views: value and gradient through a long chain", () => {
  gradcheck(device, {
    label: "chain",
    inputs: [random([4, 6], 1)],
    run: (x) =>
      x.narrow(1, 1, 4).transpose(0, 1).reshape([2, 2, 4]).narrow(2, 1, 2).permute([2, 1, 0]).expand([3, 2, 2, 2])
        .contiguous().reshape([-1]).mul(2),
    reference: (x) => {
      const narrowed = narrow(reshape(permute(narrow(x, 1, 1, 4), [1, 0]), [2, 2, 4]), 2, 1, 2);
      return map(reshape(expand(permute(narrowed, [2, 1, 0]), [3, 2, 2, 2]), [24]), (v) => 2 * v);
    },
  });
  gradcheck(device, {
    label: "overlapping parts of one tensor",
    inputs: [random([6, 3], 1)],
    run: (x) => x.narrow(0, 0, 4).mul(x.narrow(0, 2, 4)).add(x.narrow(0, 1, 1)),
    reference: (x) =>
      zip(zip(narrow(x, 0, 0, 4), narrow(x, 0, 2, 4), (a, b) => a * b), narrow(x, 0, 1, 1), (a, b) => a + b),
  });
  gradcheck(device, {
    label: "narrow in bf16",
    inputs: [random([4, 3], 1)],
    run: (x) => x.narrow(0, 1, 2).transpose(0, 1).contiguous(),
    reference: (x) => permute(narrow(x, 0, 1, 2), [1, 0]),
    dtype: bfloat16,
  });
});

test("views share memory; contiguous() and reshape() copy only what is not dense", () => {
  using _frame = scope();
  const x = tensor(device, [1, 2, 3, 4, 5, 6], { shape: [2, 3] });
  assert.equal(x.contiguous(), x);
  assert.equal(x.reshape([6]).ptr, x.ptr);
  assert.equal(x.transpose(0, 1).buffer, x.buffer);
  assert.notEqual(x.transpose(0, 1).reshape([6]).buffer, x.buffer);
  assert.deepEqual([...x.transpose(0, 1).reshape([6]).toArray()], [1, 4, 2, 5, 3, 6]);
  assert.equal(x.narrow(0, 1, 1).ptr, x.ptr + 12);
  x.copyFromHost(new Float32Array([9, 8, 7, 6, 5, 4]));
  assert.deepEqual([...x.narrow(1, 2, 1).toArray()], [7, 4]);
});

test("views of integers, and toArray() of one outside any scope, which leaves nothing behind", () => {
  using ids = tensor(device, [1, 2, 3, 4, 5, 6], { shape: [2, 3], dtype: int32 });
  using turned = ids.permute([1, 0]);
  const before = device.allocator.stats.inUse;
  assert.deepEqual([...turned.toArray()], [1, 4, 2, 5, 3, 6]);
  using flat = turned.reshape([6]);
  assert.deepEqual([...flat.toArray()], [1, 4, 2, 5, 3, 6]);
  flat.dispose();
  assert.equal(device.allocator.stats.inUse, before);
});

test("reshape(), permute(), narrow() and expand() refuse what does not fit", () => {
  using _frame = scope();
  const x = zeros(device, [2, 3]);
  assert.throws(
    () => x.reshape([4]),
    /'reshape' as the number of elements must stay the same: shapes \[2, 3\] and \[4\]/,
  );
  for (const shape of [[-1, -1], [-1, 4], [-2, -3], [1.5, 4], [-1, 0]]) {
    assert.throws(() => x.reshape(shape), ShapeError, `${shape}`);
  }
  for (const dims of [[0], [0, 0], [0, 2], [-1, 0]]) assert.throws(() => x.permute(dims), ShapeError, `${dims}`);
  assert.throws(() => x.transpose(0, 2), /dim 2 must be in \[-2, 2\)/);
  for (const [start, length] of [[-1, 1], [0, 4], [3, 1], [2, 2], [0, -1], [NaN, 1], [0.5, 1]] as const) {
    assert.throws(() => x.narrow(1, start, length), ShapeError, `${start} ${length}`);
  }
  for (const shape of [[3], [2, 4], [1, 3], [3, 2], [2, 3, 1]]) {
    assert.throws(() => x.expand(shape), ShapeError, `${shape}`);
  }
  assert.throws(() => zeros(device, [1]).expand([-2]), ShapeError);
});
