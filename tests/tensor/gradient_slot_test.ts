/**
 * The memory of a leaf's gradient: in its place from the first contribution on, pass by pass, whatever other holders see.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { float32 } from "../../src/dtype.ts";
import type { ComputeOp } from "../../src/ops/op.ts";
import { applyOne } from "../../src/tensor/apply.ts";
import { full, tensor } from "../../src/tensor/create.ts";
import { GradientSlot } from "../../src/tensor/gradient_slot.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });

/** A leaf whose gradient is written to one buffer, and the number of times that its place was asked for. */
function placed(values: readonly number[]): { readonly x: Parameter; readonly memory: Tensor; asked: number } {
  const x = leaf(device, { shape: [values.length], data: values });
  const memory = full(device, [values.length + 4], NaN).persist();
  const result = { x, memory, asked: 0 };
  const place = (): Tensor => {
    result.asked++;
    using _frame = scope();
    return memory.narrow(0, 2, values.length).alias();
  };
  const sink = new GradientSlot({ place });
  const gradient = (): Tensor | undefined => sink.gradient();
  const clearGradient = (): void => sink.clear();
  x.adopt({ ...x.storage, kind: "replicated", sink, gradient, clearGradient });
  return result;
}

test("GradientSlot: the first contribution is written to its place, later ones are added there", () => {
  using _frame = scope();
  const { x, memory } = placed([1, 2]);
  x.neg().neg().sum().backward(); // through out()
  assert.equal(x.grad?.ptr, memory.ptr + 8);
  x.sum().backward(); // through give()
  x.mul(x).sum().backward();
  x.neg().neg().sum().backward(); // through out() again
  assert.deepEqual([...memory.toArray()], [NaN, NaN, 5, 7, NaN, NaN]);
  x.zeroGrad();
  assert.equal(x.grad, undefined);
  x.mul(3).sum().backward();
  assert.deepEqual([...memory.toArray()], [NaN, NaN, 3, 3, NaN, NaN]);
  disposeLeaf(x);
  memory.dispose();
});

test("GradientSlot: an op that has one parameter as several inputs does not write both gradients to its place", () => {
  using _frame = scope();
  const { x, memory } = placed([1, 2]);
  const op: ComputeOp<undefined> = {
    name: "3a + 5b",
    infer: ([a]) => a === undefined ? [] : [{ shape: a.shape, dtype: a.dtype }],
    forward: (call) => call.device.kernels.fill({ dtype: float32, n: 2, value: 0, dst: call.output(0).ptr }),
    backward: (call) => {
      const places = [call.out(0), call.out(1)];
      for (const [i, place] of places.entries()) {
        call.device.kernels.fill({ dtype: float32, n: 2, value: 3 + 2 * i, dst: place.ptr });
      }
    },
  };
  applyOne(op, [x, x], undefined).sum().backward();
  assert.deepEqual([...x.grad?.toArray() ?? []], [8, 8]);
  assert.equal(x.grad?.ptr, memory.ptr + 8);
  disposeLeaf(x);
  memory.dispose();
});

test("GradientSlot: a pass is summed on its own before it joins earlier passes", () => {
  // Near 1e8 float32 counts in eights: threes added one by one are lost, their sum is not.
  const slot = new GradientSlot();
  const give = (value: number): void => slot.contribute(tensor(device, [value]));
  give(1e8);
  slot.finish();
  for (const value of [3, 3, 3, 3]) give(value);
  assert.equal(slot.gradient()?.item(), 1e8, "not joined yet");
  slot.finish();
  assert.equal(slot.gradient()?.item(), Math.fround(1e8 + 12));
  assert.notEqual([3, 3, 3, 3].reduce((sum, value) => Math.fround(sum + value), 1e8), Math.fround(1e8 + 12));
  slot.finish();
  assert.equal(slot.gradient()?.item(), Math.fround(1e8 + 12));
  slot.clear();
  assert.equal(slot.gradient(), undefined);
});

test("GradientSlot: what is given stays as it was when others see it", () => {
  using _frame = scope();
  const slot = new GradientSlot();
  const shared = tensor(device, [1, 2]);
  slot.contribute(shared.alias());
  slot.contribute(shared.alias());
  slot.finish();
  assert.deepEqual([...shared.toArray()], [1, 2]);
  assert.deepEqual([...slot.gradient()?.toArray() ?? []], [2, 4]);
  slot.clear();
  slot.contribute(tensor(device, [1, 2, 3, 4], { shape: [2, 2] }).transpose(0, 1).alias());
  slot.contribute(tensor(device, [10, 20, 30, 40], { shape: [2, 2] }).transpose(0, 1).alias());
  slot.finish();
  assert.deepEqual([...slot.gradient()?.toArray() ?? []], [11, 33, 22, 44]);
  slot.clear();
});
