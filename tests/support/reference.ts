/**
 * Arrays of float64 with plain loops over indices: the slow, obvious form of what tensors do, to compare them with.
 *
 * @module
 */

/** A dense row-major array. */
export interface Nd {
  readonly shape: readonly number[];
  readonly data: readonly number[];
}

/** Product of sizes. */
export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((n, size) => n * size, 1);
}

/** An array whose elements `make` computes from their index. */
export function build(shape: readonly number[], make: (index: readonly number[]) => number): Nd {
  const data: number[] = [];
  const visit = (index: readonly number[]): void => {
    const size = shape[index.length];
    if (size === undefined) data.push(make(index));
    else for (let i = 0; i < size; i++) visit([...index, i]);
  };
  visit([]);
  return { shape, data };
}

/** One element; an index counts for nothing along dims of size 1, and surplus leading ones are dropped: broadcasting. */
export function at({ shape, data }: Nd, index: readonly number[]): number {
  const surplus = index.length - shape.length;
  let flat = 0;
  for (let dim = 0; dim < shape.length; dim++) {
    const size = shape[dim] ?? NaN;
    flat = flat * size + (size === 1 ? 0 : index[surplus + dim] ?? 0);
  }
  return data[flat] ?? NaN;
}

/** Numbers in [low, high), the same for the same seed. */
export function random(shape: readonly number[], seed: number, low: number = -1, high: number = 1): Nd {
  let state = (seed * 2654435761 + 12345) >>> 0;
  return build(shape, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.fround(low + (high - low) * (state / 2 ** 32));
  });
}

/** Each element alone. */
export function map(x: Nd, f: (value: number) => number): Nd {
  return { shape: x.shape, data: x.data.map(f) };
}

/** Two arrays element by element, broadcasting. */
export function zip(a: Nd, b: Nd, f: (a: number, b: number) => number): Nd {
  const ndim = Math.max(a.shape.length, b.shape.length);
  const size = (x: Nd, dim: number): number => x.shape[dim - ndim + x.shape.length] ?? 1;
  const shape = Array.from({ length: ndim }, (_, dim) => size(a, dim) === 1 ? size(b, dim) : size(a, dim));
  return build(shape, (index) => f(at(a, index), at(b, index)));
}

/** Dims in another order. */
export function permute(x: Nd, dims: readonly number[]): Nd {
  return build(
    dims.map((dim) => x.shape[dim] ?? 1),
    (index) => at(x, x.shape.map((_, dim) => index[dims.indexOf(dim)] ?? 0)),
  );
}

/** A range of one dim. */
export function narrow(x: Nd, dim: number, start: number, length: number): Nd {
  const shape = x.shape.map((size, d) => d === dim ? length : size);
  const flat = (index: readonly number[]): number => x.shape.reduce((sum, size, d) => sum * size + (index[d] ?? 0), 0);
  return build(shape, (index) => x.data[flat(index.map((i, d) => d === dim ? i + start : i))] ?? NaN);
}

/** Repeated along dims of size 1. */
export function expand(x: Nd, shape: readonly number[]): Nd {
  return build(shape, (index) => at(x, index));
}

/** The same numbers in another shape. */
export function reshape(x: Nd, shape: readonly number[]): Nd {
  return { shape, data: x.data };
}

/** Reduces all elements along some dims to one; along all dims where none are given. */
export function reduce(
  x: Nd,
  dims: readonly number[] | undefined,
  keep: boolean,
  f: (values: readonly number[]) => number,
): Nd {
  const gone = dims ?? x.shape.map((_, dim) => dim);
  const kept = x.shape.map((size, dim) => gone.includes(dim) ? 1 : size);
  const groups = new Map<number, number[]>();
  const keptIndex = build(kept, () => 0);
  let order = 0;
  const place: Nd = { shape: kept, data: keptIndex.data.map(() => order++) };
  build(x.shape, (index) => {
    const group = at(place, index);
    groups.set(group, [...groups.get(group) ?? [], at(x, index)]);
    return 0;
  });
  const data = place.data.map((group) => f(groups.get(group) ?? []));
  return { shape: keep ? kept : x.shape.filter((_, dim) => !gone.includes(dim)), data };
}

/** Sum of numbers. */
export function sum(values: readonly number[]): number {
  return values.reduce((a, b) => a + b, 0);
}

/** Each row (along the last dim) to a new row. */
export function rows(x: Nd, f: (row: readonly number[]) => readonly number[]): Nd {
  const cols = x.shape.at(-1) ?? 1;
  const data: number[] = [];
  for (let start = 0; start < x.data.length; start += cols) data.push(...f(x.data.slice(start, start + cols)));
  return { shape: x.shape, data };
}

/** [.., m, k] @ [.., k, n], leading dims broadcasting. */
export function matmul(a: Nd, b: Nd): Nd {
  const [m, k, n] = [a.shape.at(-2) ?? 1, a.shape.at(-1) ?? 1, b.shape.at(-1) ?? 1];
  const lead = zip(build(a.shape.slice(0, -2), () => 0), build(b.shape.slice(0, -2), () => 0), () => 0).shape;
  return build([...lead, m, n], (index) => {
    const [before, i, j] = [index.slice(0, -2), index.at(-2) ?? 0, index.at(-1) ?? 0];
    const rowOf = (x: Nd): readonly number[] =>
      before.map((v, d) => x.shape[d - before.length + x.shape.length - 2] === 1 ? 0 : v);
    let total = 0;
    for (let l = 0; l < k; l++) total += exact(a, [...rowOf(a), i, l]) * exact(b, [...rowOf(b), l, j]);
    return total;
  });
}

function exact({ shape, data }: Nd, index: readonly number[]): number {
  const own = index.slice(index.length - shape.length);
  return data[shape.reduce((flat, size, dim) => flat * size + (own[dim] ?? 0), 0)] ?? NaN;
}

/** Softmax of one row. */
export function softmaxRow(row: readonly number[]): number[] {
  const top = Math.max(...row);
  const powers = row.map((value) => Math.exp(value - top));
  const total = sum(powers);
  return powers.map((power) => power / total);
}
