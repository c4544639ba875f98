/**
 * Shapes, strides and broadcasting. A {@link Layout} places a tensor's elements in a buffer; all numbers count elements.
 *
 * @module
 */
import { at } from "./at.ts";
import { ArgumentError, InternalError, ShapeError } from "./errors.ts";
import { valueText } from "./words.ts";

/** Sizes of a tensor's dims, outermost first. `[]` is a scalar. */
export type Shape = readonly number[];

/** The places of a tensor's elements in its buffer. */
export interface Layout {
  /** Sizes by dim. */
  readonly shape: Shape;
  /** Elements from one index to the next, for each dim; 0 repeats. */
  readonly strides: readonly number[];
  /** Element of the buffer at index 0, 0, … */
  readonly offset: number;
}

/** The number of elements of a shape. */
export function numelOf(shape: Shape): number {
  let n = 1;
  for (const size of shape) n *= size;
  return n;
}

/**
 * Refuses sizes that no array has.
 *
 * @throws {ShapeError} if a size is negative or no integer
 * @throws {ArgumentError} if it is no list
 */
export function requireShape(op: string, shape: Shape): void {
  if (!Array.isArray(shape)) {
    throw new ArgumentError(
      `Cannot apply '${op}' with the shape ${valueText(shape)}: expected a list of sizes, e.g. [2, 3]`,
    );
  }
  for (const size of shape) {
    if (!(Number.isSafeInteger(size) && size >= 0)) {
      throw new ShapeError(op, "sizes must be integers of 0 or more", shape);
    }
  }
}

/**
 * The sizes of a shape that must have two dims.
 *
 * @param expected what the operation takes, for the error
 * @throws {ShapeError} if there are fewer or more
 */
export function twoSizes(
  op: string,
  shape: Shape,
  expected: string = "it must have two dims",
): readonly [number, number] {
  const [first, second, ...more] = shape;
  if (first === undefined || second === undefined || more.length > 0) throw new ShapeError(op, expected, shape);
  return [first, second];
}

/**
 * The sizes of a shape that must have three dims.
 *
 * @param expected what the operation takes, for the error
 * @throws {ShapeError} if there are fewer or more
 */
export function threeSizes(
  op: string,
  shape: Shape,
  expected: string = "it must have three dims",
): readonly [number, number, number] {
  const [first, second, third, ...more] = shape;
  if (first === undefined || second === undefined || third === undefined || more.length > 0) {
    throw new ShapeError(op, expected, shape);
  }
  return [first, second, third];
}

/** Rows along the last dim, and their length. */
export function matrixOf({ shape }: { readonly shape: Shape }): { readonly rows: number; readonly cols: number } {
  const cols = shape.at(-1) ?? 1;
  return { rows: numelOf(shape) / Math.max(1, cols), cols };
}

/** Strides of a dense row-major array. */
export function denseStrides(shape: Shape): number[] {
  const strides = new Array<number>(shape.length);
  let stride = 1;
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    strides[dim] = stride;
    stride *= at(shape, dim, "dim");
  }
  return strides;
}

/** A dense row-major layout. */
export function denseLayout(shape: Shape, offset: number = 0): Layout {
  return { shape, strides: denseStrides(shape), offset };
}

/** True if the elements are dense and row-major (dims of size 1 may have any stride). */
export function isDense(layout: Layout): boolean {
  let expected = 1;
  for (let dim = layout.shape.length - 1; dim >= 0; dim--) {
    const size = at(layout.shape, dim, "dim");
    if (size !== 1 && layout.strides[dim] !== expected) return false;
    expected *= size;
  }
  return true;
}

/** A range of one dim of a layout, which holds it. */
export function narrowed({ shape, strides, offset }: Layout, dim: number, start: number, length: number): Layout {
  return { shape: shape.with(dim, length), strides, offset: offset + start * at(strides, dim, "stride of dim") };
}

/** True if two shapes are equal. */
export function sameShape(a: Shape, b: Shape): boolean {
  return a.length === b.length && a.every((size, dim) => size === b[dim]);
}

/**
 * The shape that two shapes broadcast to, by NumPy's rule.
 *
 * @throws {ShapeError} if some dim is neither equal nor 1
 */
export function broadcastShapes(op: string, a: Shape, b: Shape): number[] {
  const ndim = Math.max(a.length, b.length);
  const shape = new Array<number>(ndim);
  for (let i = 1; i <= ndim; i++) {
    const x = a[a.length - i] ?? 1;
    const y = b[b.length - i] ?? 1;
    if (x !== y && x !== 1 && y !== 1) throw new ShapeError(op, "dims must be equal or 1 to broadcast", a, b);
    shape[ndim - i] = x === 1 ? y : x;
  }
  return shape;
}

/**
 * Strides of `layout` seen as `shape`, which it broadcasts to.
 *
 * @throws {InternalError} if it does not: the op has not compared the shapes
 */
export function broadcastStrides(layout: Layout, shape: Shape): number[] {
  const lead = shape.length - layout.shape.length;
  if (lead < 0) throw notBroadcast(layout.shape, shape);
  return shape.map((size, dim) => {
    const own = layout.shape[dim - lead];
    if (own === undefined || own === 1) return 0;
    if (own !== size) throw notBroadcast(layout.shape, shape);
    return at(layout.strides, dim - lead, "stride of dim");
  });
}

function notBroadcast(from: Shape, to: Shape): InternalError {
  return new InternalError(`[${from.join(", ")}] is not broadcast to [${to.join(", ")}]`);
}

/**
 * A dim counted from the front.
 *
 * @param dim may be negative: from the back
 * @throws {ShapeError} if there is no such dim
 */
export function normalizeDim(op: string, dim: number, shape: Shape): number {
  return placeAmong(op, dim, shape, shape.length);
}

/**
 * A dim to work along as an index from 0. Without dims a tensor is worked along as if it had one, as in PyTorch.
 *
 * @throws {ShapeError} if there is no such dim
 */
export function normalizeReducedDim(op: string, dim: number, shape: Shape): number {
  return placeAmong(op, dim, shape, Math.max(1, shape.length));
}

function placeAmong(op: string, dim: number, shape: Shape, count: number): number {
  const normal = dim < 0 ? dim + count : dim;
  if (!Number.isInteger(normal) || normal < 0 || normal >= count) {
    throw new ShapeError(op, `dim ${dim} must be in [-${count}, ${count})`, shape);
  }
  return normal;
}

/**
 * A shape with its one `-1` worked out.
 *
 * @throws {ShapeError} if the number of elements differs
 */
export function resolveShape(op: string, from: Shape, to: Shape): number[] {
  const known = numelOf(to.filter((size) => size !== -1));
  const total = numelOf(from);
  const shape = to.map((size) => size === -1 ? total / known : size);
  const sound = shape.every((size) => Number.isInteger(size) && size >= 0) &&
    to.filter((size) => size === -1).length <= 1;
  if (!sound || numelOf(shape) !== total) {
    throw new ShapeError(op, "the number of elements must stay the same", from, to);
  }
  return shape;
}
