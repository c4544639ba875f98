/**
 * Numbers that come from the host into an integer dtype: those that it holds come through, and all others are refused by value, place
 * and range, wherever they come in.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, type DType, float16, float32, int32, int64, uint8 } from "../../src/dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../../src/errors.ts";
import { Embedding } from "../../src/nn/embedding.ts";
import { crossEntropy, where } from "../../src/nn/functional.ts";
import { Linear } from "../../src/nn/linear.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import { GradScaler } from "../../src/optim/grad_scaler.ts";
import { arange, full, rand, randn, tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";

const device = await openDevice("cpu", { memoryBytes: 2 ** 26 });
after(() => device.dispose());

/** Functions as a program sees them whose types nobody has checked. */
const loose: { tensor(...given: readonly unknown[]): unknown } = { ...await import("../../src/tensor/create.ts") };

const HELD: readonly (readonly [DType, readonly number[]])[] = [
  [int32, [0, -0, 1, -1, 2147483647, -2147483648, 3e8]],
  [uint8, [0, -0, 1, 255]],
];
const REFUSED: readonly (readonly [DType, readonly number[]])[] = [
  [int32, [3e9, -3e9, 2147483648, -2147483649, 1.7, -0.5, 1e300, NaN, Infinity, -Infinity, 2 ** 32]],
  [uint8, [300, 256, -1, 254.5, NaN, Infinity, -Infinity, 2 ** 32 + 1]],
];

test("what an integer dtype holds comes through", () => {
  using _frame = scope();
  for (const [dtype, values] of HELD) {
    const plain = values.map((value) => value + 0);
    assert.deepEqual([...tensor(device, values, { dtype }).toArray()], plain);
    assert.deepEqual([...tensor(device, Float64Array.from(values), { dtype }).toArray()], plain);
    for (const value of plain) assert.equal(full(device, [], value, dtype).item(), value);
  }
});

for (const [dtype, values] of REFUSED) {
  test(`tensor(), full(), arange(), scalars: ${dtype.name} refuses what it does not hold`, () => {
    const before = device.allocator.stats.inUse;
    {
      using _frame = scope();
      const x = zeros(device, [2], dtype);
      const mask = zeros(device, [2], uint8);
      for (const value of values) {
        const named = (error: unknown): boolean =>
          error instanceof ArgumentError && error.message.includes(String(value)) && error.message.includes(dtype.name);
        assert.throws(
          () => tensor(device, [1, 2, value], { dtype }),
          (error) =>
            named(error) && error instanceof Error && /at index 2: .*integers from -?\d+ to \d+/.test(error.message),
        );
        assert.throws(() => tensor(device, Float64Array.of(value), { dtype }), named);
        assert.throws(() => full(device, [2], value, dtype), named);
        assert.throws(() => x.eq(value), named);
        assert.throws(() => x.maskedFill(mask, value), named);
        assert.throws(() => where(mask, x, value), named);
        if (Math.abs(value) < 2 ** 53) {
          assert.throws(() => arange(device, value + 1, { start: value, dtype }), named, `arange from ${value}`);
        }
      }
    }
    assert.equal(device.allocator.stats.inUse, before);
  });
}

test("typed arrays of other types are taken by value", () => {
  using _frame = scope();
  assert.deepEqual([...tensor(device, Int8Array.of(-1, 5), { dtype: int32 }).toArray()], [-1, 5]);
  assert.throws(() => tensor(device, Int8Array.of(-1), { dtype: uint8 }), /-1 at index 0/);
  assert.throws(() => tensor(device, Uint32Array.of(1, 4294967295), { dtype: int32 }), /4294967295 at index 1/);
  assert.throws(() => tensor(device, Int32Array.of(256), { dtype: uint8 }), /256 at index 0/);
  assert.throws(() => tensor(device, Float32Array.of(0.5), { dtype: int32 }), /0\.5 at index 0/);
  assert.deepEqual([...tensor(device, Uint8ClampedArray.of(7), { dtype: int32 }).toArray()], [7]);
  assert.deepEqual([...tensor(device, Uint16Array.of(65535)).toArray()], [65535]);
});

test("what is no number is refused for every dtype, by place and what to do", () => {
  using _frame = scope();
  for (const dtype of [float32, float16, int32, uint8]) {
    for (const wrong of [undefined, null, "7", true, {}]) {
      assert.throws(() => loose.tensor(device, [1, wrong], { dtype }), /at index 1: .* give a number/s, `${wrong}`);
    }
    assert.throws(() => loose.tensor(device, [1n], { dtype }), /the bigint 1 at index 0.*Number\(\)/);
    assert.throws(() => loose.tensor(device, BigInt64Array.of(1n), { dtype }), /the bigint 1 at index 0/);
    assert.throws(() => loose.tensor(device, new Array(2), { dtype }), /undefined at index 0/);
  }
  assert.deepEqual([...tensor(device, [NaN, Infinity]).toArray()], [NaN, Infinity]);
});

test("arange() refuses numbers past the end of int32 before it makes a list of them", () => {
  using _frame = scope();
  assert.throws(() => arange(device, 2 ** 31 + 1), /2147483648: int32 holds/);
  assert.throws(() => arange(device, 2 ** 40), ArgumentError);
  assert.throws(() => arange(device, 300, { dtype: uint8 }), /299: uint8 holds/);
  assert.throws(() => arange(device, -2, { step: -1, dtype: uint8 }), /-1/);
  assert.throws(() => arange(device, 2, { step: 0.5, dtype: int32 }), /1\.5|0\.5/);
  assert.throws(() => arange(device, 2 ** 33, { dtype: float32 }), /at most 4294967295/);
  assert.deepEqual([...arange(device, 2 ** 31, { start: 2 ** 31 - 2 }).toArray()], [2147483646, 2147483647]);
  assert.deepEqual([...arange(device, 256, { start: 254, dtype: uint8 }).toArray()], [254, 255]);
});

test("maskedFill() refuses a finite number that the dtype makes infinite, as PyTorch does", () => {
  using _frame = scope();
  for (
    const [dtype, most, over] of [[float16, 65519, 65520], [bfloat16, 3.39e38, 3.4e38], [
      float32,
      3.4e38,
      3.5e38,
    ]] as const
  ) {
    assert.ok(Number.isFinite(full(device, [], most, dtype).item()), dtype.name);
    assert.equal(full(device, [], over, dtype).item(), Infinity);
    assert.throws(() => zeros(device, [1], dtype).maskedFill(zeros(device, [1], uint8), -over), /makes it infinite/);
    assert.equal(full(device, [], -Infinity, dtype).item(), -Infinity);
  }
  assert.throws(() => full(device, [1], 1.5, int64), /int64 holds/);
});

test("diagonals, labels, rows and steps take integers that they hold", () => {
  using _frame = scope();
  const x = full(device, [2, 3], 1);
  for (const name of ["tril", "triu"] as const) {
    for (const wrong of [0.5, NaN, Infinity]) assert.throws(() => x[name](wrong), ArgumentError);
  }
  assert.deepEqual([...x.tril(3e9).toArray()], [1, 1, 1, 1, 1, 1]);
  assert.deepEqual([...x.tril(-3e9).toArray()], [0, 0, 0, 0, 0, 0]);
  assert.deepEqual([...x.triu(3e9).toArray()], [0, 0, 0, 0, 0, 0]);
  assert.deepEqual([...x.triu(-(2 ** 32)).toArray()], [1, 1, 1, 1, 1, 1]);
  const labels = zeros(device, [2], int32);
  for (const wrong of [3e9, 0.5, NaN]) assert.throws(() => crossEntropy(x, labels, wrong), ArgumentError);
  for (const wrong of [-1, 4, 0.5, NaN]) {
    assert.throws(() => new Embedding(device, 4, 2, { paddingIdx: wrong }), ArgumentError, String(wrong));
  }
  const layer = new Linear(device, 2, 2);
  layer.weight.materialize();
  const optimizer = new AdamW([layer.weight]);
  for (const wrong of [2.5, 2 ** 31, NaN]) assert.throws(() => optimizer.setSteps(layer.weight, wrong), ArgumentError);
  assert.throws(() => new GradScaler(device, { growthInterval: 2 ** 32 }), ArgumentError);
  layer.weight.dispose();
});

test("shapes are integers of 0 or more; keys of random numbers are integers below 2^53", () => {
  using _frame = scope();
  for (const shape of [[2.5, 2], [-2, -3], [NaN], [Infinity, 0], [2 ** 54, 0]]) {
    assert.throws(() => full(device, shape, 1), ShapeError, `[${shape}]`);
    assert.throws(() => zeros(device, shape), ShapeError);
    assert.throws(() => rand(device, shape, 1), ShapeError);
    assert.throws(() => randn(device, shape, 1), ShapeError);
  }
  assert.throws(() => tensor(device, [1, 2, 3, 4, 5], { shape: [2.5, 2] }), ShapeError);
  assert.throws(() => tensor(device, [1]).expand([2.5]), ShapeError);
  for (const key of [-1, 0.5, NaN, 2 ** 53]) {
    assert.throws(() => rand(device, [2], key), ArgumentError);
    assert.throws(() => randn(device, [2], key), ArgumentError);
  }
});

test("copyFromHost() refuses typed arrays that it does not read", () => {
  using _frame = scope();
  const x: { copyFromHost(...given: readonly unknown[]): unknown } = zeros(device, [2], uint8);
  for (const wrong of [new Float64Array(2), new Uint16Array(2), new Int8Array(2), [1, 2]]) {
    assert.throws(() => x.copyFromHost(wrong), DTypeError);
  }
});

test("clamp() refuses limits that are NaN or no numbers instead of letting values past them", () => {
  using _frame = scope();
  for (const dtype of [float32, float16, bfloat16]) {
    const x: { clamp(...given: readonly unknown[]): unknown } = full(device, [2], 3, dtype);
    for (const wrong of [[NaN], [0, NaN], [undefined, 1], [null, 1], [0, null], ["0", 1], [0, true], [0, 5n]]) {
      assert.throws(() => x.clamp(...wrong), /Cannot clamp to .*both limits must be numbers/);
    }
  }
  assert.deepEqual([...full(device, [1], 3).clamp(-Infinity, Infinity).toArray()], [3]);
});

test("arange() refuses what is no finite number, for its step too", () => {
  using _frame = scope();
  const loose: { arange(...given: readonly unknown[]): unknown } = { arange };
  for (const wrong of ["3", true, null, NaN, Infinity, -Infinity, 5n]) {
    for (const dtype of [undefined, int32, uint8, float32]) {
      const message = /Cannot count .*give finite numbers/;
      assert.throws(() => loose.arange(device, wrong, { dtype }), message);
      assert.throws(() => loose.arange(device, 4, { step: wrong, dtype }), message);
      assert.throws(() => loose.arange(device, 4, { start: wrong, dtype }), message);
    }
  }
  assert.throws(() => arange(device, 4, { step: 0 }), /step other than 0/);
});
