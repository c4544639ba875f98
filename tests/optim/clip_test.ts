/**
 * Gradient norms: PyTorch's values, and the same bits however the gradients are cut.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { Buffer } from "../../src/device/buffer.ts";
import { devicePtr } from "../../src/device/device.ts";
import { openDevice } from "../../src/device/registry.ts";
import { float32, int64 } from "../../src/dtype.ts";
import { ArgumentError } from "../../src/errors.ts";
import { clipGradNorm, gradNorm } from "../../src/optim/clip.ts";
import { tensor } from "../../src/tensor/create.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { allClose } from "../support/allclose.ts";
import { readGolden, readJson } from "../support/golden.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";
import { random } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });
const golden = await readGolden("optim/expected.safetensors");
const { clip_norms: norms } = z.object({ clip_norms: z.record(z.string(), z.number()) }).parse(
  readJson("optim/expected.json"),
);

function withGrad(shape: readonly number[], values: ArrayLike<number>): Parameter {
  const parameter = leaf(device, random(shape, 1));
  parameter.storage.sink.contribute(tensor(device, values, { shape }));
  parameter.storage.sink.finish();
  return parameter;
}

for (const [limit, norm] of Object.entries(norms)) {
  test(`clipGradNorm() to ${limit} is torch.nn.utils.clip_grad_norm_`, () => {
    const parameters = [0, 1, 2].map((i) =>
      withGrad(golden.get(`grad.1.${i}`).shape, golden.floats(`grad.1.${i}`).map((value) => value * 40))
    );
    allClose([clipGradNorm(parameters, Number(limit))], [norm], { relative: 1e-6, absolute: 0 }, "norm");
    for (const [i, { grad }] of parameters.entries()) {
      const expected = golden.floats(`clip.${limit}.${i}`);
      allClose(grad?.toArray() ?? [], expected, { relative: 1e-6, absolute: 1e-9 }, `gradient ${i}`);
    }
    const after = gradNorm(parameters);
    assert.ok(after <= Number(limit) * (1 + 1e-6));
    if (norm < Number(limit)) allClose([after], [norm], { relative: 1e-6, absolute: 0 }, "unclipped norm");
    parameters.forEach(disposeLeaf);
  });
}

test("gradNorm() skips parameters without a gradient, and is 0 for none", () => {
  const before = device.allocator.stats.inUse;
  const parameters = [withGrad([2], [3, 4]), leaf(device, random([5], 2)), withGrad([0, 3], []), withGrad([], [12])];
  assert.equal(gradNorm(parameters), 13);
  assert.equal(gradNorm([]), 0);
  assert.equal(gradNorm(parameters.slice(1, 2)), 0);
  parameters.forEach(disposeLeaf);
  assert.equal(device.allocator.stats.inUse, before);
});

test("gradNorm() neither overflows nor underflows where float32 squares would", () => {
  for (const scale of [1e30, 1e-30, 1]) {
    const parameter = withGrad([2, 2], [3 * scale, 0, 0, 4 * scale]);
    allClose([gradNorm([parameter])], [5 * scale], { relative: 1e-6, absolute: 0 }, `scale ${scale}`);
    disposeLeaf(parameter);
  }
});

test("gradNorm() is NaN or Infinity if a gradient is, and clipping leaves such gradients alone", () => {
  for (const bad of [NaN, Infinity, -Infinity]) {
    const parameters = [withGrad([2, 2], [1, 2, bad, 3]), withGrad([2], [1, 1])];
    const norm = clipGradNorm(parameters, 1);
    if (Number.isNaN(bad)) assert.ok(Number.isNaN(norm));
    else assert.equal(norm, Infinity);
    parameters.forEach(disposeLeaf);
  }
  assert.throws(() => clipGradNorm([], 0), ArgumentError);
  assert.throws(() => clipGradNorm([], NaN), ArgumentError);
});

test("gradNorm() has the same bits in any order of parameters, and for a matrix cut into rows", () => {
  const [rows, cols] = [37, 19];
  const values = random([rows, cols], 5, -1, 1).data.map((value, i) => Math.fround(value * 10 ** (i % 13 - 6)));
  const vector = random([23], 6).data;
  const norm = (matrices: readonly Parameter[], others: readonly Parameter[]): number => {
    const forward = gradNorm([...matrices, ...others]);
    assert.equal(gradNorm([...others, ...matrices.toReversed()]), forward);
    [...matrices, ...others].forEach(disposeLeaf);
    return forward;
  };
  const whole = norm([withGrad([rows, cols], values)], [withGrad([23], vector)]);
  for (const cuts of [[1], [36], [5, 6, 30], [10, 20], Array.from({ length: 36 }, (_, i) => i + 1)]) {
    const edges = [0, ...cuts, rows];
    const pieces = cuts.map((_, i) => i).concat(cuts.length).map((i) => {
      const [from = 0, to = 0] = [edges[i], edges[i + 1]];
      return withGrad([to - from, cols], values.slice(from * cols, to * cols));
    });
    const parts = [withGrad([7], vector.slice(0, 7)), withGrad([16], vector.slice(7))];
    assert.equal(norm(pieces, parts), whole, `cut at ${cuts}`);
  }
});

test("sumSquares(): accumulators of several ranks add up to the same bits as one", () => {
  const { kernels } = device;
  const [rows, cols] = [24, 7];
  const values = random([rows, cols], 8, -1, 1).data.map((value, i) => Math.fround(value * 2 ** (i % 61 - 30)));
  const limbs = kernels.accumulatorBytes / 8;
  const source = Buffer.allocate(device, rows * cols * 4, "rows");
  device.copyIn(source.ptr, new Uint8Array(Float32Array.from(values).buffer));
  const accumulate = (ranges: readonly (readonly [number, number])[]): number => {
    const parts = ranges.map(([from, to]) => {
      const part = Buffer.allocate(device, kernels.accumulatorBytes, "accumulator");
      kernels.fill(int64, part.ptr, limbs, 0);
      kernels.sumSquares(float32, part.ptr, devicePtr(source.ptr + from * cols * 4), to - from, cols);
      return part;
    });
    const [first] = parts;
    assert.ok(first !== undefined);
    kernels.sumRanks(int64, int64, first.ptr, parts.map(({ ptr }) => ptr), limbs, 1, false);
    const value = kernels.accumulatorValue(first.ptr);
    for (const part of parts) part.release();
    return value;
  };
  const whole = accumulate([[0, rows]]);
  assert.equal(accumulate([[0, 1], [1, 24]]), whole);
  assert.equal(accumulate([[10, 24], [0, 10]]), whole);
  assert.equal(accumulate(Array.from({ length: rows }, (_, i) => [i, i + 1] as const)), whole);
  const exact = values.reduce((sum, value) => sum + value * value, 0);
  allClose([whole], [exact], { relative: 1e-14, absolute: 0 }, "sum of squares");
  source.release();
});
