/**
 * A backward pass refuses gradients that are not of their input, and tensors that were disposed.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { at } from "../../src/at.ts";
import { activePass } from "../../src/autograd/engine.ts";
import { noGrad } from "../../src/autograd/mode.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, type DType, float16, float32, int32 } from "../../src/dtype.ts";
import { DTypeError, ShapeError, UseAfterDisposeError } from "../../src/errors.ts";
import type { ComputeOp } from "../../src/ops/op.ts";
import { applyOne, hookBackward } from "../../src/tensor/apply.ts";
import { ones, tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";
import { random } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 2 ** 24 });
const inUse = (): number => device.allocator.stats.inUse;

test("a gradient whose dtype or shape is not its input's is refused, of leaves and of results, naming op and input", () => {
  const x = leaf(device, random([2, 3], 1));
  const before = inUse();
  const giving = (shape: readonly number[], dtype: DType): ComputeOp<undefined> => ({
    name: "custom",
    infer: (inputs) => [{ shape: [2], dtype: at(inputs, 1, "input").dtype }],
    forward: (call) =>
      call.device.kernels.fill({ dtype: call.output(0).dtype, n: 2, value: 1, dst: call.output(0).ptr }),
    backward: (call) => {
      const grad = call.empty(shape, dtype);
      call.device.kernels.fill({ dtype, n: grad.numel, value: 1, dst: grad.ptr });
      call.give(1, grad);
    },
  });
  const inputs: readonly (readonly [string, () => Tensor, DType])[] = [
    ["a leaf", () => x, float32],
    ["a result of 'mulScalar'", () => x.mul(1), float32],
    ["a result of 'to'", () => x.to(float16), float16],
    ["a result of 'mulScalar'", () => x.to(bfloat16).mul(1), bfloat16],
    ["a result of 'permute'", () => x.reshape([3, 2]).transpose(0, 1), float32],
    ["a result of 'hook'", () => {
      const hooked = x.mul(1);
      hookBackward([hooked], { name: "hook", run: () => {} });
      return hooked;
    }, float32],
  ];
  for (const [from, make, own] of inputs) {
    for (const dtype of [float32, bfloat16, float16]) {
      for (const shape of [[2, 3], [3, 2], [6], [2, 3, 1], [2, 1]]) {
        using _frame = scope();
        const result = applyOne(giving(shape, dtype), [ones(device, [1]), make()], undefined);
        const run = (): void => result.to(float32).sum().backward();
        const isShape = shape.join() === "2,3";
        if (dtype === own && isShape) run();
        else {
          const what = dtype === own
            ? "shape: shapes .* and \\[2, 3\\]"
            : `dtype: dtypes ${dtype.name} and ${own.name}`;
          const said = new RegExp(
            `Cannot apply 'custom backward' as the gradient that it gives its input 1, ${from}, must have that input's ${what}$`,
          );
          assert.throws(run, said);
          assert.throws(
            () => applyOne(giving(shape, dtype), [ones(device, [1]), make()], undefined).to(float32).sum().backward(),
            dtype === own ? ShapeError : DTypeError,
          );
        }
      }
      x.zeroGrad();
    }
  }
  assert.equal(activePass(), undefined);
  assert.equal(inUse(), before);
  disposeLeaf(x);
});

test("integers that an op gives need no gradient, and it keeps nothing for them", () => {
  const x = leaf(device, { shape: [3], data: [1, 2, 3] });
  const before = inUse();
  const op: ComputeOp<undefined> = {
    name: "places",
    infer: () => [{ shape: [3], dtype: int32 }],
    forward: (call) => {
      call.device.kernels.fill({ dtype: int32, n: 3, value: 2, dst: call.output(0).ptr });
      call.save(call.empty([1000], float32));
    },
    backward: (call) => call.give(0, call.grad(0)),
  };
  {
    using _frame = scope();
    const places = applyOne(op, [x.mul(1)], undefined);
    assert.equal(places.requiresGrad, false);
    assert.equal(x.gather(0, places).requiresGrad, true);
    assert.throws(() => places.backward(places), /needs no gradient/);
  }
  assert.equal(inUse(), before);
  disposeLeaf(x);
});

test("whatever uses a disposed tensor says that it was disposed", () => {
  const [x, index] = [leaf(device, { shape: [2], data: [1, 2] }), tensor(device, [0, 1], { dtype: int32 })];
  const freed = (): Tensor => {
    using _frame = scope();
    return x.square().sum();
  };
  const loss = freed();
  const seed = ones(device, []);
  seed.dispose();
  const before = inUse();
  {
    using _frame = scope();
    const uses: readonly (() => unknown)[] = [
      () => loss.backward(),
      () => loss.backward(ones(device, [])),
      () => loss.backward(ones(device, [3])),
      () => x.sum().backward(seed),
      () => loss.add(x),
      () => x.mul(loss),
      () => x.add(1).matmul(loss),
      () => loss.to(float32),
      () => loss.to(bfloat16),
      () => loss.to(int32),
      () => loss.contiguous(),
      () => loss.clone(),
      () => loss.detach(),
      () => loss.persist(),
      () => loss.item(),
      () => loss.toArray(),
      () => loss.reshape([1]),
      () => loss.expand([2, 3]),
      () => loss.sum(),
      () => loss.eq(1),
      () => x.scatterAdd(0, index, loss),
      () => x.gather(0, index).maximum(loss),
      () => noGrad(() => loss.mul(2)),
    ];
    for (const use of uses) {
      assert.throws(use, UseAfterDisposeError, use.toString());
      assert.throws(use, /is used after it was disposed: its scope has ended, or dispose\(\) was called/);
    }
  }
  assert.equal(activePass(), undefined);
  x.zeroGrad();
  assert.equal(inUse(), before);
  index.dispose();
  disposeLeaf(x);
});
