/**
 * Checks that the `infer` functions of several ops share.
 *
 * @module
 */
import { type DType, int32 } from "../dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../errors.ts";
import { sameShape, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { valueText } from "../words.ts";

/**
 * Refuses what is no tensor, which code without types may give.
 *
 * @param expected what else may stand there
 * @throws {ArgumentError} with the value
 */
export function requireTensor(op: string, value: unknown, expected: string = "a tensor"): void {
  if (typeof value === "object" && value !== null && "requireAlive" in value) return;
  throw new ArgumentError(`Cannot apply '${op}' to ${valueText(value)}: expected ${expected}`);
}

/**
 * Refuses what is no list of numbers, which code without types may give.
 *
 * @param expected what stands there
 * @throws {ArgumentError} with the value
 */
export function requireList(op: string, value: unknown, expected: string): void {
  if (Array.isArray(value)) return;
  throw new ArgumentError(`Cannot apply '${op}' with ${valueText(value)}: expected ${expected}`);
}

/**
 * Checks that a dtype's name is in a list.
 *
 * @throws {DTypeError} if it is not
 */
export function expectDtype(op: string, dtype: DType, names: readonly string[]): void {
  if (!names.includes(dtype.name)) throw new DTypeError(op, `the dtype must be ${names.join(", ")}`, dtype.name);
}

/**
 * The first input, which must be a float.
 *
 * @throws {DTypeError} if it is not
 */
export function floatInput(op: string, [x]: readonly Tensor[]): Tensor {
  if (x?.dtype.kind === "float") return x;
  throw new DTypeError(op, "the input must be a float", x?.dtype.name ?? "nothing");
}

/**
 * The first two inputs, which must be of one dtype.
 *
 * @throws {DTypeError} if they are not
 */
export function pairOfOneDType(op: string, [a, b]: readonly Tensor[]): readonly [Tensor, Tensor] {
  if (a !== undefined && b?.dtype === a.dtype) return [a, b];
  throw new DTypeError(op, "both must have one dtype", a?.dtype.name ?? "nothing", b?.dtype.name ?? "nothing");
}

/**
 * The first two inputs, which must be floats of one dtype.
 *
 * @throws {DTypeError} if they are not
 */
export function floatPair(op: string, [a, b]: readonly Tensor[], what: string = "both"): readonly [Tensor, Tensor] {
  if (a !== undefined && b?.dtype === a.dtype && a.dtype.kind === "float") return [a, b];
  throw new DTypeError(
    op,
    `${what} must have one float dtype, to which to() casts`,
    a?.dtype.name ?? "nothing",
    b?.dtype.name ?? "nothing",
  );
}

/**
 * Checks the places where documents begin: a number for each token.
 *
 * @throws {DTypeError | ShapeError} if they are not int32 of the shape of the tokens
 */
export function requireStarts(op: string, { dtype, shape }: Tensor, tokens: Shape): void {
  if (dtype !== int32) throw new DTypeError(op, "beginnings of documents must be int32", dtype.name);
  if (!sameShape(shape, tokens)) {
    throw new ShapeError(op, `beginnings of documents must be [${tokens.join(", ")}], a number for each token`, shape);
  }
}
