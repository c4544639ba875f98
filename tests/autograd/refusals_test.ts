/**
 * A backward pass refuses gradients that do not fit their input.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { at } from "../../src/at.ts";
import { activePass } from "../../src/autograd/engine.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, type DType, float16, float32 } from "../../src/dtype.ts";
import { DTypeError, ShapeError } from "../../src/errors.ts";
import type { ComputeOp } from "../../src/ops/op.ts";
import { applyOne, hookBackward } from "../../src/tensor/apply.ts";
import { ones } from "../../src/tensor/create.ts";
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
