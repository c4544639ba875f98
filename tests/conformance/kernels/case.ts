/**
 * One call of a kernel as a test sees it: arguments, contents of its arrays, and what must be there afterwards. Lengths and
 * directions of the arrays come from the table of kernels.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, type DType, float16, float32 } from "../../../src/dtype.ts";
import type { DevicePtr } from "../../../src/device/device.ts";
import type { Arguments } from "../../../src/device/kernels/signature.ts";
import type { ArgsOf, KernelName } from "../../../src/device/kernels/table.ts";
import type { Bed } from "./bed.ts";

type IsAddress<T> = NonNullable<T> extends DevicePtr | readonly DevicePtr[] ? true : false;
type AddressOf<K extends KernelName> = {
  [N in keyof ArgsOf<K>]-?: IsAddress<ArgsOf<K>[N]> extends true ? N : never;
}[keyof ArgsOf<K>];

/** The contents of an array before the call: values, bytes, or numbers from a range. */
export type Content = readonly number[] | Uint8Array | { readonly low: number; readonly high: number };

/** The contents of an array after the call; `undefined`: unchanged. Non-finite values must be equal. */
export interface Expected {
  readonly values: readonly (number | undefined)[];
  /** Allowed is `relative * |value| + absolute`; without either, values must be equal. */
  readonly relative?: number;
  readonly absolute?: number;
}

/** The elements of an array, by its name; of an array in a list, by its place too. */
export type Reader<N> = (name: N, place?: number) => number[];

/** One call. */
export interface KernelCase<K extends KernelName> {
  readonly label?: string;
  /** All arguments that are no addresses. */
  readonly args: Omit<ArgsOf<K>, AddressOf<K>>;
  /** Contents of arrays. @default numbers in [-1, 1) */
  readonly arrays?: { readonly [N in AddressOf<K>]?: Content };
  /** Optional addresses that are left out. */
  readonly without?: readonly AddressOf<K>[];
  /** Addresses in a list. */
  readonly count?: number;
  /** The expected contents of every array that is written. */
  readonly expect: (before: Reader<AddressOf<K>>, after: Reader<AddressOf<K>>) => {
    readonly [N in AddressOf<K>]?: Expected;
  };
}

/** A call of any kernel. */
export interface AnyCase {
  readonly label?: string;
  readonly args: Arguments;
  readonly arrays?: Readonly<Record<string, Content | undefined>>;
  readonly without?: readonly string[];
  readonly count?: number;
  readonly expect: (before: Reader<string>, after: Reader<string>) => Readonly<Record<string, Expected | undefined>>;
}

/** The calls that a kernel is tested with. */
export type CasesOf<K extends KernelName> = readonly KernelCase<K>[];

/** Cases of some kernels: none may be without. */
export type Cases<N extends KernelName> = { readonly [K in N]: CasesOf<K> };

/** Tests of a kernel beyond single calls, by its name. */
export type Properties = Readonly<Record<string, (bed: Bed) => void>>;

/** The storage dtypes of kernels, with the relative error of one rounding. */
export const FLOATS: readonly { readonly dtype: DType; readonly epsilon: number }[] = [
  { dtype: float32, epsilon: 2 ** -24 },
  { dtype: bfloat16, epsilon: 2 ** -8 },
  { dtype: float16, epsilon: 2 ** -11 },
];

/** For each token of rows of documents of these lengths the place of its document's first token: a list of lengths a row. */
export function startsOf(rows: readonly (readonly number[])[]): number[] {
  return rows.flatMap((lengths) => {
    return lengths.flatMap((length, i) => {
      const start = lengths.slice(0, i).reduce((total, before) => total + before, 0);
      return Array.from({ length }, () => start);
    });
  });
}

/** Cases for each storage dtype. */
export function eachFloat<C>(make: (dtype: DType, epsilon: number) => readonly C[]): C[] {
  return FLOATS.flatMap(({ dtype, epsilon }) => make(dtype, epsilon));
}

/** An element that must be there. */
export function pick(list: ArrayLike<number>, i: number): number {
  const value = list[i];
  if (value === undefined) assert.fail(`no element ${i} of ${list.length}`);
  return value;
}

/** `n` values by their place; without iterators, with which this would be most of what references take. */
export function each(n: number, f: (i: number) => number): number[] {
  const values: number[] = [];
  for (let i = 0; i < n; i++) values.push(f(i));
  return values;
}

/** The elements of an array that is not of plain numbers. */
export function numbers(list: ArrayLike<number | bigint>): number[] {
  return each(list.length, (i) => Number(list[i]));
}

/** Sum of `f(i)` for i below n. */
export function sum(n: number, f: (i: number) => number): number {
  let total = 0;
  for (let i = 0; i < n; i++) total += f(i);
  return total;
}

/** Places of the elements of a shape, in order, in an array with strides. */
export function places(shape: readonly number[], strides: readonly number[]): number[] {
  return shape.reduce<number[]>(
    (list, size, dim) => list.flatMap((place) => each(size, (i) => place + i * pick(strides, dim))),
    [0],
  );
}

/** Nearest float32. */
export const fround: (x: number) => number = Math.fround;

/** One float32 and its bits. */
const single = new DataView(new ArrayBuffer(4));

/** Nearest bfloat16; NaN stays NaN. */
export function toBfloat16(x: number): number {
  single.setFloat32(0, x);
  const word = single.getUint32(0);
  if (!Number.isNaN(x)) single.setUint32(0, (word + 0x7fff + ((word >>> 16) & 1)) & 0xffff0000);
  return single.getFloat32(0);
}

/** The value after a store in a float dtype and a load. */
export function rounding(dtype: DType): (x: number) => number {
  return dtype === bfloat16 ? toBfloat16 : dtype === float16 ? Math.f16round : fround;
}

/** Numbers in [-scale, scale), the same for the same seed, as the dtype stores them. */
export function spread(n: number, seed: number, scale: number, dtype: DType): number[] {
  const round = rounding(dtype);
  return each(n, (i) => round(fround(scale * Math.sin(seed + 12.9898 * (i + 1) * (1 + seed)))));
}

/** Applies a function of one row to each. */
export function byRow(x: readonly number[], cols: number, f: (row: number[], r: number) => number[]): number[] {
  return Array.from({ length: x.length / cols }, (_, r) => f(x.slice(r * cols, (r + 1) * cols), r)).flat();
}

/** Gradient of `sum(dy * f(x))` for a function of rows, by central differences of fourth order. */
export function gradient(
  x: readonly number[],
  dy: readonly number[],
  cols: number,
  f: (row: readonly number[]) => number[],
): number[] {
  return byRow(x, cols, (row, r) => {
    const h = 1e-4;
    const loss = (place: number, d: number): number => {
      const moved = row.with(place, pick(row, place) + d);
      return f(moved).reduce((total, y, j) => total + y * pick(dy, r * cols + j), 0);
    };
    return row.map((_, i) => (8 * (loss(i, h) - loss(i, -h)) - (loss(i, 2 * h) - loss(i, -2 * h))) / (12 * h));
  });
}

/** Same length, and each within `relative * |expected| + absolute`; non-finite values must be the same. */
export function close(
  actual: readonly number[],
  expected: readonly (number | undefined)[],
  relative: number,
  absolute: number,
  what: string,
): void {
  assert.equal(actual.length, expected.length, `${what}: length`);
  for (let i = 0; i < expected.length; i++) {
    const e = expected[i];
    if (e === undefined) continue;
    const a = pick(actual, i);
    const fits = Number.isFinite(e) ? Math.abs(a - e) <= relative * Math.abs(e) + absolute : Object.is(a, e);
    if (!fits) assert.fail(`${what}: element ${i} is ${a}, expected ${e}`);
  }
}
