/**
 * Elements by index, joins, parts and running sums: every layout, empty tensors, and what is refused.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { arange, cat, onesLike, rand, stack, zeros, zerosLike } from "../../doors/nn.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float32, int32, uint8 } from "../../src/dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../../src/errors.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { disposeLeaf, gradcheckLayouts, leaf } from "../support/gradcheck.ts";
import { at, build, narrow, random } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 64 * 2 ** 20 });
const list = (x: Tensor): number[] => [...x.toArray()];
const ids = (values: readonly number[], shape: readonly number[] = [values.length]): Tensor =>
  tensor(device, values, { shape, dtype: int32 });

const INDEX = [2, 0, 2];

test("gather(), indexSelect(), scatterAdd() and indexAdd(): value and gradient in every layout", () => {
  for (const dim of [0, 1, 2]) {
    const shape = [3, 3, 3];
    // The index of an element, and where it points.
    const pointed = (index: readonly number[]): number[] => index.with(dim, INDEX[index[dim] ?? 0] ?? 0);
    const added = (x: Parameters<typeof at>[0], source: Parameters<typeof at>[0]): ReturnType<typeof build> => {
      const data = [...x.data];
      build(shape, (index) => {
        const flat = pointed(index).reduce((sum, i) => sum * 3 + i, 0);
        data[flat] = (data[flat] ?? 0) + at(source, index);
        return 0;
      });
      return { shape, data };
    };
    // In memory each index as it is; and one that is repeated, turned, so that it is neither dense nor a row.
    const whole = (): Tensor => {
      const others = [0, 1, 2].filter((other) => other !== dim);
      const rows = ids(INDEX).reshape([3, 1]).expand([3, 9]).contiguous().reshape(shape);
      return rows.permute([0, 1, 2].map((place) => place === dim ? 0 : others.indexOf(place) + 1));
    };
    const checks = [
      ["gather", (x: Tensor) => x.gather(dim, whole())],
      ["indexSelect", (x: Tensor) => x.indexSelect(dim - 3, ids(INDEX))],
    ] as const;
    for (const [name, run] of checks) {
      gradcheckLayouts(device, {
        label: `${name} along ${dim}`,
        run,
        reference: (x) => build(shape, (index) => at(x, pointed(index))),
      }, [shape]);
    }
    const sums = [
      ["scatterAdd", (x: Tensor, source: Tensor) => x.scatterAdd(dim, whole(), source)],
      ["indexAdd", (x: Tensor, source: Tensor) => x.indexAdd(dim, ids(INDEX), source)],
    ] as const;
    for (const [name, run] of sums) {
      gradcheckLayouts(device, { label: `${name} along ${dim}`, run, reference: added }, [shape, shape]);
    }
  }
});

test("gather() takes the probability of each row's label, and integers as they are", () => {
  using _frame = scope();
  const x = tensor(device, [1, 2, 3, 4, 5, 6], { shape: [2, 3] });
  assert.deepEqual(list(x.gather(1, ids([2, 0]).unsqueeze(1)).squeeze(1)), [3, 4]);
  assert.deepEqual(list(ids([16777217, 5]).gather(0, ids([0, 0, 1]))), [16777217, 16777217, 5]);
  assert.deepEqual(list(tensor(device, [1, 0], { dtype: uint8 }).indexSelect(0, ids([1, 1, 0]))), [0, 0, 1]);
  assert.deepEqual(x.gather(1, zeros(device, [2, 0], int32)).shape, [2, 0]);
  assert.deepEqual(x.indexSelect(0, zeros(device, [0], int32)).shape, [0, 3]);
});

test("scatterAdd() adds in order, in float32 inside: many small bfloat16 are not lost", () => {
  using _frame = scope();
  const n = 1000;
  const [x, index] = [zeros(device, [1], bfloat16), zeros(device, [n], int32)];
  const sum = x.scatterAdd(0, index, tensor(device, new Array<number>(n).fill(0.25), { dtype: bfloat16 }));
  assert.equal(sum.dtype, bfloat16);
  assert.equal(sum.item(), 250);
});

test("indices out of range are named, and leave no memory", () => {
  const before = device.allocator.stats.inUse;
  {
    using _frame = scope();
    const x = zeros(device, [2, 3]);
    const named = (value: number, place: number, limit: number) => (error: unknown): boolean =>
      error instanceof ArgumentError &&
      error.message === `Cannot use index ${value} at place ${place}: indices must be in [0, ${limit})`;
    assert.throws(() => x.gather(1, ids([0, 3], [2, 1])), named(3, 1, 3));
    assert.throws(() => x.indexSelect(0, ids([1, -1])), named(-1, 3, 2));
    assert.throws(() => x.indexAdd(0, ids([2]), zeros(device, [1, 3])), named(2, 0, 2));
  }
  assert.equal(device.allocator.stats.inUse, before);
});

test("gather() and others refuse indices that do not fit", () => {
  using _frame = scope();
  const x = zeros(device, [2, 3]);
  assert.throws(() => x.gather(1, zeros(device, [2, 1])), /'gather' as the index must be int32: dtypes float32/);
  assert.throws(
    () => x.gather(1, ids([0])),
    /'gather' as the index must have the sizes of the input but for dim 1: shapes \[2, 3\] and \[1\]/,
  );
  assert.throws(() => x.gather(0, ids([0, 0], [1, 2])), ShapeError);
  assert.throws(() => x.gather(2, ids([0, 0], [2, 1])), /dim 2 must be in \[-2, 2\)/);
  assert.throws(() => x.indexSelect(0, ids([0, 0], [2, 1])), /'indexSelect' as the index must have one dim/);
  assert.throws(() => x.indexAdd(0, ids([0]), zeros(device, [1, 2])), ShapeError);
  assert.throws(() => x.scatterAdd(0, ids([0, 0, 0], [1, 3]), zeros(device, [1, 3], bfloat16)), DTypeError);
});

test("cat(), stack(), split() and cumsum(): value and gradient in every layout", () => {
  gradcheckLayouts(device, {
    label: "cat",
    run: (x, y) => cat([x, y, x], -1),
    reference: (x, y) =>
      build(
        [2, 8],
        ([row = 0, col = 0]) => at(col >= 3 && col < 5 ? y : x, [row, col < 3 ? col : col < 5 ? col - 3 : col - 5]),
      ),
  }, [[2, 3], [2, 2]]);
  gradcheckLayouts(device, {
    label: "stack in bf16",
    run: (x, y) => stack([x, y], 1),
    reference: (x, y) => build([2, 2, 3], ([i = 0, which, j = 0]) => at(which === 0 ? x : y, [i, j])),
    dtype: bfloat16,
  }, [[2, 3], [2, 3]]);
  gradcheckLayouts(device, {
    label: "all parts of a split",
    run: (x) => {
      const [first, second] = x.split([1, 3], 1);
      if (first === undefined || second === undefined) assert.fail("two parts");
      return first.mul(second);
    },
    reference: (x) => build([2, 3], ([i = 0, j = 0]) => at(x, [i, 0]) * at(x, [i, j + 1])),
  }, [[2, 4]]);
  for (const dim of [0, 1]) {
    gradcheckLayouts(device, {
      label: `cumsum along ${dim}`,
      run: (x) => x.cumsum(dim),
      reference: (x) =>
        build([3, 5], (index) =>
          narrow(x, dim, 0, (index[dim] ?? 0) + 1).data.reduce((sum, _, place) => {
            const [rows, cols] = narrow(x, dim, 0, (index[dim] ?? 0) + 1).shape;
            const [row, col] = [Math.floor(place / (cols ?? 1)), place % (cols ?? 1)];
            const isOwn = dim === 0 ? col === index[1] && row < (rows ?? 0) : row === index[0];
            return isOwn ? sum + at(x, [row, col]) : sum;
          }, 0)),
    }, [[3, 5]]);
  }
});

test("cat() and stack() take empty tensors, integers and one tensor alone", () => {
  using _frame = scope();
  assert.deepEqual(cat([zeros(device, [0, 2]), zeros(device, [3, 2])]).shape, [3, 2]);
  assert.deepEqual(list(cat([ids([1]), ids([2, 3])])), [1, 2, 3]);
  assert.deepEqual(stack([ids([1, 2])], -1).shape, [2, 1]);
  assert.deepEqual(stack([zeros(device, []), zeros(device, [])]).shape, [2]);
});

test("cat() and stack() refuse what does not fit", () => {
  using _frame = scope();
  const x = zeros(device, [2, 3]);
  assert.throws(() => cat([]), (error) => error instanceof ArgumentError && /'cat' to no tensors/.test(error.message));
  assert.throws(() => stack([]), /'stack' to no tensors: give at least one/);
  assert.throws(
    () => cat([x, zeros(device, [2, 2])]),
    /'cat' as all sizes but those of dim 0 must be equal: shapes \[2, 3\] and \[2, 2\]/,
  );
  assert.throws(() => cat([x, zeros(device, [2])]), ShapeError);
  assert.throws(() => cat([x, zeros(device, [2, 3], bfloat16)]), /'cat' as all must have one dtype/);
  assert.throws(() => cat([zeros(device, [])]), ShapeError);
  assert.throws(
    () => stack([x, zeros(device, [1, 3])]),
    /'stack' as shapes must be equal: shapes \[2, 3\] and \[1, 3\]/,
  );
  assert.throws(() => stack([x], 3), /dim 3 must be in \[-3, 3\)/);
});

test("split() and chunk() give views; the last part may be shorter", () => {
  using _frame = scope();
  const x = tensor(device, [0, 1, 2, 3, 4, 5, 6]);
  const parts = (list: readonly Tensor[]): number[][] => list.map((part) => [...part.toArray()]);
  assert.deepEqual(parts(x.split(3)), [[0, 1, 2], [3, 4, 5], [6]]);
  assert.deepEqual(parts(x.split([2, 5])), [[0, 1], [2, 3, 4, 5, 6]]);
  assert.deepEqual(parts(x.chunk(3)), [[0, 1, 2], [3, 4, 5], [6]]);
  assert.deepEqual(parts(x.chunk(4)), [[0, 1], [2, 3], [4, 5], [6]]);
  assert.ok(x.split(3).every((part) => part.buffer === x.buffer));
  assert.equal(zeros(device, [0]).split(3).length, 1);
  assert.throws(() => x.split([2, 4]), /'split' as the sizes 2, 4 must add up to that of dim 0: shapes \[7\]/);
  for (const size of [0, -1, 1.5]) assert.throws(() => x.split(size), ArgumentError);
  for (const chunks of [0, -2, 0.5]) assert.throws(() => x.chunk(chunks), ArgumentError);
});

test("squeeze(), unsqueeze(), select() and flatten() share memory where they can", () => {
  using _frame = scope();
  const x = tensor(device, [1, 2, 3, 4, 5, 6], { shape: [2, 3] });
  const turned = x.transpose(0, 1);
  assert.equal(turned.unsqueeze(0).buffer, x.buffer);
  assert.deepEqual(turned.unsqueeze(-2).shape, [3, 1, 2]);
  assert.deepEqual(list(turned.unsqueeze(1).squeeze()), [1, 4, 2, 5, 3, 6]);
  assert.deepEqual(x.squeeze(0).shape, [2, 3], "a dim of another size stays");
  assert.deepEqual([list(x.select(1, -1)), list(x.select(0, 1))], [[3, 6], [4, 5, 6]]);
  assert.equal(x.select(0, 1).buffer, x.buffer);
  assert.deepEqual([x.flatten().shape, zeros(device, []).flatten().shape, zeros(device, [2, 0, 3]).flatten(1).shape], [
    [6],
    [1],
    [2, 0],
  ]);
  assert.throws(() => x.select(1, 3), ShapeError);
  assert.throws(() => x.select(1, -4), ShapeError);
  assert.throws(() => x.unsqueeze(3), /dim 3 must be in \[-3, 3\)/);
  assert.throws(() => x.flatten(1, 0), ShapeError);
});

test("tril() and triu() of a square, in any dtype, by default and from a diagonal", () => {
  using _frame = scope();
  const x = ids([1, 2, 3, 4, 5, 6, 7, 8, 9], [3, 3]);
  assert.deepEqual(list(x.tril()), [1, 0, 0, 4, 5, 0, 7, 8, 9]);
  assert.deepEqual(list(x.triu(1)), [0, 2, 3, 0, 0, 6, 0, 0, 0]);
  assert.throws(() => zeros(device, [3]).tril(), /'tril' as it must have at least two dims: shapes \[3\]/);
});

test("var() of far numbers is exact, of one number NaN; std() of equals has gradient 0", () => {
  using _frame = scope();
  assert.equal(tensor(device, [10000, 10001, 10002]).var().item(), 1);
  assert.ok(Number.isNaN(tensor(device, [3]).var().item()));
  assert.equal(tensor(device, [3]).var(undefined, false, 0).item(), 0);
  const x = leaf(device, { shape: [2], data: [5, 5] });
  x.std().backward();
  assert.deepEqual([...x.grad?.toArray() ?? []], [0, 0]);
  disposeLeaf(x);
});

test("arange(), rand(), zerosLike() and onesLike()", () => {
  using _frame = scope();
  const numbers = arange(device, 7, { start: 1, step: 2 });
  assert.deepEqual([list(numbers), numbers.dtype], [[1, 3, 5], int32]);
  const falling = arange(device, 0, { start: 1, step: -0.25 });
  assert.deepEqual([list(falling), falling.dtype], [[1, 0.75, 0.5, 0.25], float32]);
  assert.equal(arange(device, 2, { dtype: bfloat16 }).dtype, bfloat16);
  assert.equal(arange(device, -3).numel, 0);
  for (const options of [{ step: 0 }, { start: NaN }]) {
    assert.throws(() => arange(device, 3, options), (error) => error instanceof ArgumentError);
  }
  const even = rand(device, [1000], 7);
  assert.ok(list(even).every((value) => value >= 0 && value < 1));
  assert.ok(Math.abs(even.mean().item() - 0.5) < 0.05);
  assert.deepEqual(list(even), list(rand(device, [1000], 7)), "the key decides");
  const like = tensor(device, random([2, 3], 1).data, { shape: [2, 3], dtype: bfloat16 });
  for (const [made, value] of [[zerosLike(like), 0], [onesLike(like), 1]] as const) {
    assert.deepEqual([made.shape, made.dtype, new Set(list(made))], [[2, 3], bfloat16, new Set([value])]);
  }
});
