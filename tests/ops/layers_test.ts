/**
 * The ops of layers that act on each row or element: casts, softmax, norms, SwiGLU, rotary positions, embeddings.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, type DType, float32, float64, int32, uint8 } from "../../src/dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../../src/errors.ts";
import { rope, swiglu } from "../../src/nn/functional.ts";
import { embeddingOp } from "../../src/ops/embedding.ts";
import { layerNormOp, rmsNormOp } from "../../src/ops/norm.ts";
import { applyOne } from "../../src/tensor/apply.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose } from "../support/allclose.ts";
import { disposeLeaf, gradcheck, gradcheckLayouts, leaf } from "../support/gradcheck.ts";
import { at, build, type Nd, random, rows, softmaxRow, sum, zip } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });

test("to(): value rounds to nearest even, the gradient comes back in the input's dtype", () => {
  using _frame = scope();
  const x = leaf(device, { shape: [4], data: [1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, -3.14159] });
  const y = x.to(bfloat16);
  assert.deepEqual([...y.toArray()], [1, 1, 1 + 2 ** -6, -3.140625]);
  y.to(float32).sum().backward();
  assert.equal(x.grad?.dtype, float32);
  assert.deepEqual([...x.grad?.toArray() ?? []], [1, 1, 1, 1]);
  assert.equal(x.to(float32), x);
  assert.deepEqual([...tensor(device, [1, -2, 3], { dtype: int32 }).to(float32).toArray()], [1, -2, 3]);
  assert.deepEqual([...tensor(device, [-1.7, 1e10, NaN]).to(int32).toArray()], [-1, 2 ** 31 - 1, 0]);
  assert.deepEqual([...tensor(device, [1, 255, 7], { dtype: uint8 }).to(bfloat16).to(uint8).toArray()], [1, 255, 7]);
  assert.equal(x.to(int32).requiresGrad, false);
  const refused = /'to' as the dtype must be float32, bfloat16, float16, int32, uint8: dtypes float64/;
  assert.throws(() => x.to(float64), refused);
  assert.throws(() => zeros(device, [1], float64).to(float32), refused);
  disposeLeaf(x);
  gradcheckLayouts(device, {
    label: "to and back",
    run: (t) => t.to(bfloat16).to(float32),
    reference: (t) => t,
    tolerance: { relative: 2 ** -8, absolute: 0 },
  }, [[3, 4]]);
});

test("softmax(): value and gradient in every layout", () => {
  gradcheckLayouts(
    device,
    { label: "softmax", run: (x) => x.softmax(), reference: (x) => rows(x, softmaxRow) },
    [[2, 3, 7]],
    -3,
    3,
  );
  gradcheck(device, {
    label: "softmax of one",
    inputs: [random([3, 1], 1)],
    run: (x) => x.softmax(),
    reference: (x) => rows(x, softmaxRow),
  });
  gradcheck(device, {
    label: "softmax of nothing",
    inputs: [random([0, 4], 1)],
    run: (x) => x.softmax(),
    reference: (x) => x,
  });
  gradcheck(device, {
    label: "softmax bf16",
    inputs: [random([3, 6], 1)],
    run: (x) => x.softmax(),
    reference: (x) => rows(x, softmaxRow),
    dtype: bfloat16,
  });
  using _frame = scope();
  allClose(tensor(device, [1000, 1001, -1000]).softmax().toArray(), softmaxRow([0, 1, -2000]), {
    relative: 1e-6,
    absolute: 1e-12,
  }, "large");
  assert.equal(zeros(device, []).softmax().item(), 1);
  assert.throws(() => zeros(device, [2], int32).softmax(), DTypeError);
});

const EPS = 1e-5;

function rmsReference(x: Nd, weight?: Nd): Nd {
  const normal = rows(x, (row) => {
    const scale = 1 / Math.sqrt(sum(row.map((v) => v * v)) / row.length + EPS);
    return row.map((v) => v * scale);
  });
  return weight === undefined ? normal : zip(normal, weight, (a, b) => a * b);
}

function layerReference(x: Nd, weight?: Nd, bias?: Nd): Nd {
  const normal = rows(x, (row) => {
    const mean = sum(row) / row.length;
    const scale = 1 / Math.sqrt(sum(row.map((v) => (v - mean) ** 2)) / row.length + EPS);
    return row.map((v) => (v - mean) * scale);
  });
  const scaled = weight === undefined ? normal : zip(normal, weight, (a, b) => a * b);
  return bias === undefined ? scaled : zip(scaled, bias, (a, b) => a + b);
}

const rms = (...inputs: Tensor[]): Tensor => applyOne(rmsNormOp, inputs, { eps: EPS, zeroCentered: false });
const layer = (...inputs: Tensor[]): Tensor => applyOne(layerNormOp, inputs, EPS);

for (
  const [op, run, reference, most] of [[rmsNormOp, rms, rmsReference, 2], [
    layerNormOp,
    layer,
    layerReference,
    3,
  ]] as const
) {
  test(`${op.name}: value and gradient in every layout, with and without weight and bias`, () => {
    for (let inputs = 1; inputs <= most; inputs++) {
      const shapes = [[2, 3, 10], [10], [10]].slice(0, inputs);
      gradcheckLayouts(device, { label: `${op.name} of ${inputs}`, run, reference }, shapes, 0.2, 2);
      const values = shapes.map((shape, i) => random(shape, i + 1, 0.2, 2));
      gradcheck(device, {
        label: `${op.name} of ${inputs} bf16`,
        inputs: values,
        run,
        reference,
        dtype: bfloat16,
        tolerance: { relative: 0.02, absolute: 0.03 },
      });
    }
    gradcheck(device, {
      label: `${op.name} of no rows`,
      inputs: [random([0, 4], 1), random([4], 2)],
      run,
      reference: (x) => x,
    });
    using _frame = scope();
    assert.throws(
      () => run(zeros(device, [2, 3]), zeros(device, [2])),
      new RegExp(`'${op.name}' as weight and bias must be \\[3\\]`),
    );
    assert.throws(() => run(zeros(device, [2, 3]), zeros(device, [3], bfloat16)), DTypeError);
  });
}

test("rmsNorm of zero-centered weights: value and gradient in every layout", () => {
  const run = (...inputs: Tensor[]): Tensor => applyOne(rmsNormOp, inputs, { eps: EPS, zeroCentered: true });
  const reference = (x: Nd, weight: Nd): Nd => zip(rmsReference(x), weight, (a, b) => a * (1 + b));
  gradcheckLayouts(device, { label: "zero-centered", run, reference }, [[2, 3, 10], [10]], 0.2, 2);
});

test("norms give gradients only where they are needed", () => {
  for (const run of [rms, layer]) {
    const leaves = [leaf(device, random([4, 6], 1)), leaf(device, random([6], 2))];
    for (const frozen of leaves) {
      frozen.requiresGrad = false;
      {
        using _frame = scope();
        run(...leaves).sum().backward();
      }
      for (const one of leaves) assert.equal(one.grad === undefined, one === frozen);
      frozen.requiresGrad = true;
      for (const one of leaves) one.zeroGrad();
    }
    leaves.forEach(disposeLeaf);
  }
});

test("swiglu(): value and gradient in every layout", () => {
  const reference = (gate: Nd, up: Nd): Nd => zip(gate, up, (g, u) => g / (1 + Math.exp(-g)) * u);
  gradcheckLayouts(device, { label: "swiglu", run: swiglu, reference }, [[2, 3, 5], [2, 3, 5]], -3, 3);
  gradcheck(device, {
    label: "swiglu of itself",
    inputs: [random([7], 1)],
    run: (x) => swiglu(x, x),
    reference: (x) => reference(x, x),
  });
  gradcheck(device, {
    label: "swiglu bf16",
    inputs: [random([7], 1), random([7], 2)],
    run: swiglu,
    reference,
    dtype: bfloat16,
  });
  using _frame = scope();
  assert.throws(() => swiglu(zeros(device, [2, 3]), zeros(device, [3])), ShapeError);
  assert.throws(() => swiglu(zeros(device, [3]), zeros(device, [3], bfloat16)), DTypeError);
});

function ropeReference(
  x: Nd,
  angles: readonly (readonly number[])[],
  headDim: number,
  positions?: readonly number[],
): Nd {
  const [, seq = 1] = x.shape;
  return build(x.shape, ([b = 0, s = 0, column = 0]) => {
    const [head, d] = [Math.floor(column / headDim), column % headDim];
    const row = angles[positions?.[b * seq + s] ?? s] ?? [];
    const half = row.length;
    const value = (e: number): number => at(x, [b, s, head * headDim + e]);
    if (d >= 2 * half) return value(d);
    const angle = row[d % half] ?? NaN;
    return d < half
      ? value(d) * Math.cos(angle) - value(d + half) * Math.sin(angle)
      : value(d) * Math.cos(angle) + value(d - half) * Math.sin(angle);
  });
}

test("rope(): value and gradient in every layout, whole and partial, with positions", () => {
  const angles = Array.from({ length: 9 }, (_, p) => [p, p * 0.3, p * 0.01]);
  const tables = [Math.cos, Math.sin].map((f) => tensor(device, angles.flat().map(f), { shape: [9, 3] }).persist());
  const [cos, sin] = tables;
  assert.ok(cos !== undefined && sin !== undefined);
  for (const headDim of [6, 10]) {
    gradcheckLayouts(device, {
      label: `rope in heads of ${headDim}`,
      run: (x) => rope(x, cos, sin, headDim),
      reference: (x) => ropeReference(x, angles, headDim),
    }, [[2, 4, 3 * headDim]]);
  }
  gradcheckLayouts(device, {
    label: "rope of neighbors behind others",
    run: (x) => rope(x, cos, sin, 9, undefined, { start: 2, interleaved: true }),
    reference: (x) =>
      build(x.shape, ([b = 0, s = 0, column = 0]) => {
        const [place, own] = [column % 9 - 2, at(x, [b, s, column])];
        const angle = angles[s]?.[Math.floor(place / 2)];
        if (place < 0 || angle === undefined) return own;
        const other = at(x, [b, s, column + (place % 2 === 0 ? 1 : -1)]);
        return own * Math.cos(angle) + (place % 2 === 0 ? -other : other) * Math.sin(angle);
      }),
  }, [[2, 4, 18]]);
  const list = [8, 0, 3, 3, 1, 7];
  const positions = tensor(device, list, { shape: [2, 3], dtype: int32 }).persist();
  const inputs = [random([2, 3, 6], 1)];
  const run = (x: Tensor): Tensor => rope(x, cos, sin, 6, positions);
  gradcheck(device, { label: "rope at positions", inputs, run, reference: (x) => ropeReference(x, angles, 6, list) });
  gradcheck(device, {
    label: "rope bf16",
    inputs,
    run,
    reference: (x) => ropeReference(x, angles, 6, list),
    dtype: bfloat16,
  });
  {
    using _frame = scope();
    const x = zeros(device, [1, 10, 6]);
    assert.throws(() => rope(x, cos, sin, 6), /the tables must reach the sequence length 10/);
    assert.throws(() => rope(x, cos, sin, 4), ShapeError);
    assert.throws(() => rope(x, cos, sin, 6, positions), /positions must be int32 \[batch, seq\]/);
    assert.throws(() => rope(x, cos.to(bfloat16), sin, 6), DTypeError);
  }
  for (const one of [...tables, positions]) one.dispose();
});

test("rope(): tables may lie in any layout", () => {
  using _frame = scope();
  const x = tensor(device, random([1, 3, 4], 1).data, { shape: [1, 3, 4] });
  const [cos, sin] = [random([2, 3], 2), random([2, 3], 3)].map(({ data }) =>
    tensor(device, data, { shape: [2, 3] }).transpose(0, 1)
  );
  assert.ok(cos !== undefined && sin !== undefined);
  assert.deepEqual(rope(x, cos, sin, 4).toArray(), rope(x, cos.contiguous(), sin.contiguous(), 4).toArray());
});

test("embedding: rows by id, gradients added up, the padding row left out", () => {
  const ids = [3, 0, 3, 2, 3, 0];
  const lookUp = (paddingIdx: number, dtype: DType = float32) => (weight: Tensor): Tensor =>
    applyOne(embeddingOp, [weight.to(dtype), tensor(device, ids, { shape: [2, 3], dtype: int32 })], { paddingIdx });
  const reference = (weight: Nd): Nd =>
    build([2, 3, 5], ([i = 0, j = 0, c = 0]) => at(weight, [ids[3 * i + j] ?? 0, c]));
  gradcheckLayouts(device, { label: "embedding", run: lookUp(-1), reference }, [[4, 5]]);
  gradcheck(device, {
    label: "embedding bf16",
    inputs: [random([4, 5], 1)],
    run: lookUp(-1),
    reference,
    dtype: bfloat16,
  });
  const weight = leaf(device, random([4, 5], 1));
  {
    using _frame = scope();
    const rows = lookUp(3)(weight);
    allClose(rows.toArray(), reference({ shape: [4, 5], data: [...weight.toArray()] }).data, {
      relative: 0,
      absolute: 0,
    }, "rows");
    rows.sum().backward();
  }
  assert.deepEqual([...weight.grad?.toArray() ?? []], [2, 0, 1, 0].flatMap((n) => new Array(5).fill(n)));
  disposeLeaf(weight);
});

test("embedding refuses ids out of range, naming the place, and keeps nothing", () => {
  const weight = leaf(device, random([4, 5], 1));
  const before = device.allocator.stats.inUse;
  for (const [ids, bad, place] of [[[0, 4, 9], 4, 1], [[-1, 0, 0], -1, 0]] as const) {
    using list = tensor(device, ids, { dtype: int32 });
    const look = (): Tensor => applyOne(embeddingOp, [weight, list], { paddingIdx: -1 });
    assert.throws(look, ArgumentError);
    assert.throws(look, new RegExp(`id ${bad} at place ${place}: the table has 4 rows`));
  }
  assert.equal(device.allocator.stats.inUse, before);
  using _frame = scope();
  assert.throws(
    () => applyOne(embeddingOp, [weight, zeros(device, [2])], { paddingIdx: -1 }),
    /ids must be int32, as tensor\(\) makes with dtype int32: dtypes float32/,
  );
  assert.throws(
    () => applyOne(embeddingOp, [zeros(device, [4]), zeros(device, [2], int32)], { paddingIdx: -1 }),
    ShapeError,
  );
  disposeLeaf(weight);
});
