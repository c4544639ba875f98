/**
 * Gradient norms: PyTorch's values, and the same bits however the gradients are cut.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { createLoopbackWorld, openLoopback } from "../../src/comm/data/loopback.ts";
import { replicate } from "../../src/ddp/replicate.ts";
import { openDevice } from "../../src/device/registry.ts";
import { float32 } from "../../src/dtype.ts";
import { ArgumentError, NonFiniteError } from "../../src/errors.ts";
import { Linear } from "../../src/nn/linear.ts";
import { clipGradNorm, gradNorm } from "../../src/optim/clip.ts";
import type { NormType } from "../../src/optim/norm.ts";
import { tensor } from "../../src/tensor/create.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose } from "../support/allclose.ts";
import { readGolden, readJson } from "../support/golden.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";
import { random } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });
const golden = await readGolden("optim/expected.safetensors");
const { clip_norms: norms, norm_types: types } = z.object({
  clip_norms: z.record(z.string(), z.number()),
  norm_types: z.record(z.string(), z.number()),
}).parse(
  readJson("optim/expected.json"),
);

const NORM_TYPES: readonly NormType[] = [1, 2, 3, Infinity];

function withGrad(shape: readonly number[], values: ArrayLike<number>): Parameter {
  const parameter = leaf(device, random(shape, 1));
  parameter.storage.sink.contribute(tensor(device, values, { shape }));
  parameter.storage.sink.finish();
  return parameter;
}

/** The value of a norm, which is freed. */
function read(norm: Tensor): number {
  using read = norm;
  assert.deepEqual([read.dtype, read.shape], [float32, []]);
  return read.item();
}

for (const [limit, norm] of Object.entries(norms)) {
  test(`clipGradNorm() to ${limit} is torch.nn.utils.clip_grad_norm_`, () => {
    const parameters = [0, 1, 2].map((i) =>
      withGrad(golden.get(`grad.1.${i}`).shape, golden.floats(`grad.1.${i}`).map((value) => value * 40))
    );
    allClose([read(clipGradNorm(parameters, Number(limit)))], [norm], { relative: 1e-6, absolute: 0 }, "norm");
    for (const [i, { grad }] of parameters.entries()) {
      const expected = golden.floats(`clip.${limit}.${i}`);
      allClose(grad?.toArray() ?? [], expected, { relative: 1e-6, absolute: 1e-9 }, `gradient ${i}`);
    }
    const after = read(gradNorm(parameters));
    assert.ok(after <= Number(limit) * (1 + 1e-6));
    if (norm < Number(limit)) allClose([after], [norm], { relative: 1e-6, absolute: 0 }, "unclipped norm");
    parameters.forEach(disposeLeaf);
  });
}

for (const [name, norm] of Object.entries(types)) {
  test(`clipGradNorm() by the ${name}-norm is torch.nn.utils.clip_grad_norm_`, () => {
    const normType = NORM_TYPES.find((type) => type === Number(name.replace("inf", "Infinity"))) ?? assert.fail(name);
    const parameters = [0, 1, 2].map((i) =>
      withGrad(golden.get(`grad.1.${i}`).shape, golden.floats(`grad.1.${i}`).map((value) => value * 40))
    );
    const tolerance = { relative: 1e-6, absolute: 1e-9 };
    allClose([read(gradNorm(parameters, { normType }))], [norm], tolerance, "norm");
    allClose([read(clipGradNorm(parameters, 3, { normType }))], [norm], tolerance, "norm before clipping");
    for (const [i, { grad }] of parameters.entries()) {
      allClose(grad?.toArray() ?? [], golden.floats(`clip.${name}-norm.${i}`), tolerance, `gradient ${i}`);
    }
    parameters.forEach(disposeLeaf);
  });
}

test("gradNorm() of any type is NaN for a NaN, infinite for an infinity, and 0 of nothing", () => {
  for (const normType of NORM_TYPES) {
    for (
      const [values, norm] of [[[1, NaN, 2], NaN], [[1, -Infinity], Infinity], [[Infinity, NaN], NaN], [[], 0]] as const
    ) {
      const parameters = [withGrad([2], [0.5, -0.25]), withGrad([values.length], values)];
      if (values.length === 0) parameters.shift()?.dispose();
      assert.deepEqual(read(gradNorm(parameters, { normType })), norm, `${normType} of ${values}`);
      parameters.forEach(disposeLeaf);
    }
  }
  const one = withGrad([1], [1]);
  const refusal = {
    name: "ArgumentError",
    message: "Cannot take the 4-norm of gradients: normType must be 1, 2, 3 or Infinity",
  };
  const given: { normType?: 1 } = JSON.parse('{"normType":4}');
  assert.throws(() => gradNorm([one], given), refusal);
  assert.throws(() => clipGradNorm([one], 1, given), refusal);
  disposeLeaf(one);
});

test("gradNorm() skips parameters without a gradient, leaves no memory, and needs a parameter", () => {
  const before = device.allocator.stats.inUse;
  const parameters = [withGrad([2], [3, 4]), leaf(device, random([5], 2)), withGrad([0, 3], []), withGrad([], [12])];
  assert.equal(read(gradNorm(parameters)), 13);
  assert.equal(read(gradNorm(parameters.slice(1, 2))), 0);
  assert.equal(read(clipGradNorm(parameters, 1)), 13);
  parameters.forEach(disposeLeaf);
  assert.equal(device.allocator.stats.inUse, before);
  assert.throws(() => gradNorm([]), ArgumentError);
  assert.throws(() => clipGradNorm([], 1), ArgumentError);
});

test("gradNorm() neither overflows nor underflows where float32 squares would", () => {
  for (const scale of [1e30, 1e-30, 1]) {
    const parameter = withGrad([2, 2], [3 * scale, 0, 0, 4 * scale]);
    allClose([read(gradNorm([parameter]))], [5 * scale], { relative: 1e-6, absolute: 0 }, `scale ${scale}`);
    disposeLeaf(parameter);
  }
});

test("clipGradNorm() makes all gradients NaN of a norm that is NaN, and zero of an infinite one, as PyTorch does", () => {
  for (const [bad, norm, other] of [[NaN, NaN, NaN], [Infinity, Infinity, 0], [-Infinity, Infinity, 0]] as const) {
    const parameters = [withGrad([2, 2], [1, 2, bad, 3]), withGrad([2], [1, 1])];
    assert.equal(read(clipGradNorm(parameters, 1)), norm);
    const [first, second] = parameters.map(({ grad }) => [...grad?.toArray() ?? []]);
    assert.deepEqual(first, [other, other, NaN, other]);
    assert.deepEqual(second, [other, other]);
    parameters.forEach(disposeLeaf);
  }
  assert.throws(() => clipGradNorm([], 0), ArgumentError);
  assert.throws(() => clipGradNorm([], NaN), ArgumentError);
});

test("clipGradNorm() with errorIfNonfinite throws and leaves gradients as they are", () => {
  for (const [bad, norm] of [[NaN, NaN], [-Infinity, Infinity]] as const) {
    const before = device.allocator.stats.inUse;
    const parameters = [withGrad([2, 2], [1, 2, bad, 3]), withGrad([2], [1, 1])];
    assert.throws(() => clipGradNorm(parameters, 1, { errorIfNonfinite: true }), (error) => {
      assert.ok(error instanceof NonFiniteError);
      assert.equal(error.message, `Gradient norm is ${norm}`);
      return true;
    });
    assert.deepEqual(parameters.map(({ grad }) => [...grad?.toArray() ?? []]), [[1, 2, bad, 3], [1, 1]]);
    parameters.forEach(disposeLeaf);
    assert.equal(device.allocator.stats.inUse, before);
  }
  const parameter = withGrad([2], [3, 4]);
  assert.equal(read(clipGradNorm([parameter], 10, { errorIfNonfinite: true })), 5);
  disposeLeaf(parameter);
});

test("gradNorm() has the same bits in any order of parameters, and for a matrix cut into rows", () => {
  const [rows, cols] = [37, 19];
  const values = random([rows, cols], 5, -1, 1).data.map((value, i) => Math.fround(value * 10 ** (i % 13 - 6)));
  const vector = random([23], 6).data;
  const norm = (matrices: readonly Parameter[], others: readonly Parameter[]): number => {
    const forward = read(gradNorm([...matrices, ...others]));
    assert.equal(read(gradNorm([...others, ...matrices.toReversed()])), forward);
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

test("clipGradNorm() names the first ten parameters that nothing reduces beside reduced ones, and counts the others", () => {
  using group = openLoopback(createLoopbackWorld(1), 0, device);
  const model = new Linear(device, 2, 2);
  const handle = replicate(model, { mesh: group });
  const plain = Array.from({ length: 12 }, () => withGrad([1], [1]));
  for (const [count, end] of [[10, "'"], [11, "' and 1 more"], [12, "' and 2 more"]] as const) {
    assert.throws(() => clipGradNorm([...model.parameters(), ...plain.slice(0, count)], 1), (error) => {
      const [, names = "", rest = ""] =
        /^Cannot clip gradients: nothing reduces '(.*?)('(?: and \d+ more)?) over ranks,/
          .exec(error instanceof ArgumentError ? error.message : "") ?? assert.fail(String(error));
      assert.deepEqual([names.split("', '").length, rest], [10, end]);
      return true;
    });
  }
  plain.forEach(disposeLeaf);
  handle.dispose();
});
