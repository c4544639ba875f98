/**
 * Tensor operations against PyTorch, forward and backward, by the fixture of `tests/parity/make_ops.py`; the same on a device
 * that checks every access, and on one that computes nothing.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { binaryCrossEntropyWithLogits, cat, l1Loss, mseLoss, stack, where } from "../../doors/nn.ts";
import type { Device } from "../../src/device/device.ts";
import { DryDevice } from "../../src/device/dry/device.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, type DType, float16, float32, int32, uint8 } from "../../src/dtype.ts";
import { tensor } from "../../src/tensor/create.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose, toleranceOf } from "../support/allclose.ts";
import { CheckedDevice } from "../support/checked_device.ts";
import { readGolden } from "../support/golden.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";

const golden = await readGolden("ops/expected.safetensors");

/** The operation of each case. */
const CASES: Readonly<Record<string, (x: Tensor, y: Tensor, z: Tensor) => Tensor>> = {
  pow: (x, y) => x.pow(y),
  pow_at_zero: (x, y) => x.pow(y),
  pow_number: (x) => x.pow(-1.5),
  pow_2: (x) => x.pow(2),
  pow_3: (x) => x.pow(3),
  pow_0: (x) => x.pow(0),
  reciprocal: (x) => x.reciprocal(),
  softplus: (x) => x.softplus(),
  maximum_number: (x) => x.maximum(0.25),
  clamp_low: (x) => x.clamp(-0.5),
  clamp_high: (x) => x.clamp(-Infinity, 0.5),
  eq: (x, y) => x.eq(y),
  ne: (x, y) => x.ne(y),
  lt: (x, y) => x.lt(y),
  le: (x, y) => x.le(y),
  gt: (x, y) => x.gt(y),
  ge: (x, y) => x.ge(y),
  gt_number: (x) => x.gt(0.5),
  eq_int: (x, y) => x.eq(y),
  logical_and: (x, y) => x.logicalAnd(y),
  logical_or: (x, y) => x.logicalOr(y),
  logical_not: (x) => x.logicalNot(),
  where: (mask, x, y) => where(mask, x, y),
  where_broadcast: (mask, x, y) => where(mask, x, y),
  where_number: (mask, x) => where(mask, x, 0.5),
  where_int: (mask, x, y) => where(mask, x, y),
  masked_fill: (mask, x) => x.maskedFill(mask, -3),
  min: (x) => x.min(),
  min_dim: (x) => x.min(1),
  var: (x) => x.var(),
  var_dims: (x) => x.var([0, 2], true),
  var_biased: (x) => x.var(-1, false, 0),
  std: (x) => x.std(1),
  std_of_equals: (x) => x.std(1),
  cumsum: (x) => x.cumsum(-1),
  cumsum_dim: (x) => x.cumsum(1),
  softmax_dim: (x) => x.softmax(1),
  log_softmax: (x) => x.logSoftmax(),
  log_softmax_dim: (x) => x.logSoftmax(0),
  argmax_dim: (x) => x.argmax(1),
  tril: (x) => x.tril(),
  tril_above: (x) => x.tril(1),
  triu: (x) => x.triu(-1),
  cat: (x, y, z) => cat([x, y, z]),
  cat_dim: (x, y, z) => cat([x, y, z], -1),
  cat_int: (x, y) => cat([x, y]),
  stack: (x, y) => stack([x, y]),
  stack_dim: (x, y) => stack([x, y], -1),
  split: (x) => part(x.split(3, -1), 1),
  split_sizes: (x) => part(x.split([1, 0, 2], 1), 2),
  chunk: (x) => part(x.chunk(3, 2), 1),
  select: (x) => x.select(1, -2),
  squeeze: (x) => x.squeeze(),
  squeeze_dim: (x) => x.squeeze(-1),
  unsqueeze: (x) => x.unsqueeze(1),
  unsqueeze_last: (x) => x.unsqueeze(-1),
  flatten: (x) => x.flatten(),
  flatten_dims: (x) => x.flatten(1, -2),
  expand: (x) => x.expand([3, -1, 4]),
  clone: (x) => x.clone(),
  to_int: (x) => x.to(int32),
  to_float: (mask) => mask.to(float32),
  gather: (x, index) => x.gather(1, index),
  gather_last: (x, index) => x.gather(-1, index),
  index_select: (x, index) => x.indexSelect(1, index),
  index_select_rows: (x, index) => x.indexSelect(0, index),
  scatter_add: (x, index, source) => x.scatterAdd(1, index, source),
  index_add: (x, index, source) => x.indexAdd(1, index, source),
  mse_loss: (x, y) => mseLoss(x, y),
  mse_loss_sum: (x, y) => mseLoss(x, y, "sum"),
  mse_loss_none: (x, y) => mseLoss(x, y, "none"),
  l1_loss: (x, y) => l1Loss(x, y),
  bce_with_logits: (x, y) => binaryCrossEntropyWithLogits(x, y),
};
/** Cases whose first input is a mask. */
const MASKED = /^(where|masked_fill|to_float)/;

const cases = golden.names.filter((name) => name.endsWith(".out")).map((name) => name.slice(0, -4));

function part(parts: readonly Tensor[], i: number): Tensor {
  return parts[i] ?? assert.fail(`no part ${i} of ${parts.length}`);
}

/** Runs a case. `compare` is false where the device computes nothing, so that shapes alone are checked. */
function runCase(device: Device, name: string, compare: boolean): void {
  const dtype: DType = name.endsWith("_bf16") ? bfloat16 : name.endsWith("_f16") ? float16 : float32;
  const run = CASES[name.replace(/_b?f16$/, "")] ?? assert.fail(`the fixture has '${name}', which is not run here`);
  const before = device.allocator.stats.inUse;
  const leaves = new Map<number, Parameter>();
  {
    using _frame = scope();
    const inputs: Tensor[] = [];
    for (let i = 0; golden.has(`${name}.in.${i}`); i++) {
      const { shape, data } = golden.get(`${name}.in.${i}`);
      if (data instanceof Float32Array) {
        const made = leaf(device, { shape, data: [...data] });
        leaves.set(i, made);
        inputs.push(made.to(dtype));
      } else inputs.push(tensor(device, data, { shape, dtype: MASKED.test(name) && i === 0 ? uint8 : int32 }));
    }
    const [x, y = part(inputs, 0), z = x] = inputs;
    const out = run(x ?? assert.fail("no input"), y, z ?? y);
    const expected = golden.get(`${name}.out`);
    assert.deepEqual([...out.shape], [...expected.shape], `${name}: shape`);
    if (compare) allClose(out.toArray(), expected.data, toleranceOf(dtype), `${name}: value`);
    assert.equal(out.requiresGrad, golden.has(`${name}.seed`), `${name}: whether it has a gradient`);
    if (out.requiresGrad) {
      const { shape, data } = golden.get(`${name}.seed`);
      out.backward(tensor(device, data, { shape, dtype: out.dtype }));
    }
  }
  for (const [i, made] of leaves) {
    const wanted = `${name}.grad.${i}`;
    assert.equal(made.grad !== undefined, golden.has(wanted), `${name}: whether input ${i} has a gradient`);
    if (made.grad !== undefined) {
      const { shape, data } = golden.get(wanted);
      assert.deepEqual([...made.grad.shape], [...shape], `${name}: shape of gradient ${i}`);
      if (compare) allClose(made.grad.toArray(), data, toleranceOf(dtype), `${name}: gradient of input ${i}`);
    }
    disposeLeaf(made);
  }
  assert.equal(device.allocator.stats.inUse, before, `${name}: bytes left`);
}

const memoryBytes = 2 ** 24;
const device = await openDevice("cpu", { memoryBytes });

for (const name of cases) {
  test(`${name} is what PyTorch computes, forward and backward`, () => runCase(device, name, true));
}

test("every case here is in the fixture", () => {
  for (const name of Object.keys(CASES)) assert.ok(cases.includes(name), name);
});

test("all of them touch allocated memory only, and overlap nothing", async () => {
  const checked = new CheckedDevice(await openDevice("cpu", { memoryBytes }));
  for (const name of cases) runCase(checked, name, true);
  for (const kernel of ["compare", "select", "gather", "scatterAdd", "cumsum"]) {
    assert.ok((checked.calls.get(kernel) ?? 0) > 0, `${kernel} was not called`);
  }
});

test("all of them run dry", () => {
  const dry = new DryDevice(device);
  for (const name of cases) runCase(dry, name, false);
  assert.ok((dry.uses.get("scatterAdd")?.flops ?? 0) > 0);
});
