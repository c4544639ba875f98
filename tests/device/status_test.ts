/**
 * Faults of kernels as users meet them: told when the op returns, or late, when a value is read or a backward begins; and what
 * the gate keeps from harm until then.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import type { Device } from "../../src/device/device.ts";
import { int32 } from "../../src/dtype.ts";
import { ArgumentError, NonFiniteError } from "../../src/errors.ts";
import { crossEntropy, rope } from "../../src/nn/functional.ts";
import { embeddingOp } from "../../src/ops/embedding.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import { clipGradNorm } from "../../src/optim/clip.ts";
import { SGD } from "../../src/optim/sgd.ts";
import { applyOne } from "../../src/tensor/apply.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";
import { random } from "../support/reference.ts";

const memoryBytes = 2 ** 25;
const early = await openDevice("cpu", { memoryBytes });
const late = await openDevice("cpu", { memoryBytes, lateStatus: true });

function lookUp(table: Tensor, ids: readonly number[]): Tensor {
  return applyOne(embeddingOp, [table, tensor(table.device, ids, { dtype: int32 })], { paddingIdx: -1 });
}

/** Ops with something out of range, and what must be said of it. */
const FAULTS: readonly (readonly [string, (device: Device) => Tensor, RegExp])[] = [
  [
    "embedding",
    (device) => lookUp(zeros(device, [4096, 2]), [...new Array<number>(17).fill(1), 5000, 7000]),
    /^Cannot look up id 5000 at place 17: the table has 4096 rows$/,
  ],
  [
    "crossEntropy",
    (device) => crossEntropy(zeros(device, [3, 4]), tensor(device, [0, -100, -7], { dtype: int32 })),
    /^Cannot take the cross-entropy of label -7 at row 2: there are 4 classes$/,
  ],
  [
    "rope",
    (device) => {
      const tables = [zeros(device, [8, 2]), zeros(device, [8, 2])] as const;
      const positions = tensor(device, [1, 9, 0], { shape: [1, 3], dtype: int32 });
      return rope(zeros(device, [1, 3, 4]), ...tables, 4, positions);
    },
    /^Cannot use position 9: positions must be in \[0, 8\)$/,
  ],
  [
    "gather",
    (device) => zeros(device, [4]).gather(0, tensor(device, [1, 4, -1], { dtype: int32 })),
    /^Cannot use index 4 at place 1: indices must be in \[0, 4\)$/,
  ],
];

for (const [name, run, message] of FAULTS) {
  test(`${name}() tells what is out of range when it returns, and leaves no memory`, () => {
    using _frame = scope();
    const before = early.allocator.stats.inUse;
    {
      using _inner = scope();
      assert.throws(() => run(early), (error) => error instanceof ArgumentError && message.test(error.message));
    }
    assert.equal(early.allocator.stats.inUse, before);
    assert.equal(early.status.read(), undefined, "told once");
  });

  test(`${name}() on a device that tells late returns, and reading tells`, () => {
    using _frame = scope();
    const result = run(late);
    const other = zeros(late, [1]);
    assert.throws(() => other.toArray(), (error) => error instanceof ArgumentError && message.test(error.message));
    assert.ok([...result.toArray()].every((value) => !Number.isNaN(value)), "zeros stand where the result would");
  });
}

/** A table with an optimizer, one step of which is `step(ids)`. */
function trained(
  table: Parameter,
  maxNorm: number | undefined,
  optimizer: AdamW | SGD,
): (ids: readonly number[]) => Tensor {
  return (ids) => {
    optimizer.zeroGrad();
    const loss = lookUp(table, ids).square().sum();
    loss.backward();
    if (maxNorm !== undefined) clipGradNorm([table], maxNorm);
    optimizer.step();
    return loss;
  };
}

for (const maxNorm of [1, undefined]) {
  for (const Kind of [AdamW, SGD]) {
    test(`${Kind.name} changes nothing in a step with a fault that is told late, ${maxNorm ? "" : "not "}clipped`, () => {
      using _frame = scope();
      const table = leaf(late, random([4, 3], 1));
      const optimizer = new Kind([table], Kind === SGD ? { momentum: 0.9 } : {});
      const step = trained(table, maxNorm, optimizer);
      const bytes = (): Uint8Array[] =>
        [{ ptr: table.ptr, n: 12 }, ...[...optimizer.stateViews()].map(({ ptr }) => ({ ptr: ptr(), n: 12 }))].map(
          ({ ptr, n }) => {
            const read = new Uint8Array(4 * n);
            late.copyOut(read, ptr);
            return read;
          },
        );
      step([0, 1]);
      const before = bytes();
      const loss = step([2, 9]); // not a word yet
      assert.deepEqual(bytes(), before);
      assert.equal(optimizer.stepsOf(table), 1);
      assert.throws(() => loss.item(), /Cannot look up id 9 at place 1: the table has 4 rows/);
      step([2, 3]);
      assert.notDeepEqual(bytes(), before);
      assert.equal(optimizer.stepsOf(table), 2);
      optimizer.dispose();
      disposeLeaf(table);
    });
  }
}

test("a fault that nobody reads is told by the backward after the next", () => {
  using _frame = scope();
  const table = leaf(late, random([4, 3], 1));
  const optimizer = new SGD([table], { learningRate: 0.1 });
  const step = trained(table, 1, optimizer);
  step([1, 4]);
  assert.throws(() => step([0]), /Cannot look up id 4 at place 1/);
  step([0]);
  step([0]);
  assert.equal(optimizer.stepsOf(table), 2);
  disposeLeaf(table);
  optimizer.dispose();
});

for (const device of [early, late]) {
  test(`a norm that must be finite and is not keeps an update from happening, ${device === late ? "told late" : ""}`, () => {
    using _frame = scope();
    const parameter = leaf(device, random([3], 1));
    const optimizer = new SGD([parameter], { learningRate: 0.1 });
    const before = [...parameter.toArray()];
    parameter.mul(tensor(device, [1, NaN, 1])).sum().backward();
    const clip = (): Tensor => clipGradNorm([parameter], 1, { errorIfNonfinite: true });
    if (device.status.isLate) {
      const norm = clip();
      optimizer.step();
      assert.throws(
        () => norm.item(),
        (error) => error instanceof NonFiniteError && error.message === "Gradient norm is NaN",
      );
    } else {
      assert.throws(clip, NonFiniteError);
      optimizer.step();
    }
    assert.deepEqual([...parameter.toArray()], before);
    assert.equal(optimizer.stepsOf(parameter), 0);
    optimizer.zeroGrad();
    parameter.sum().backward(); // another gradient, another gate
    optimizer.step();
    assert.equal(optimizer.stepsOf(parameter), 1);
    optimizer.dispose();
    disposeLeaf(parameter);
  });
}
