/**
 * Checks that the `infer` of several ops have in common.
 *
 * @module
 */
import { DTypeError } from "../errors.ts";
import type { Tensor } from "../tensor/tensor.ts";

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
 * The first two inputs, which must be floats of one dtype.
 *
 * @throws {DTypeError} if they are not
 */
export function floatPair(op: string, [a, b]: readonly Tensor[], what: string = "both"): readonly [Tensor, Tensor] {
  if (a !== undefined && b?.dtype === a.dtype && a.dtype.kind === "float") return [a, b];
  throw new DTypeError(op, `${what} must have one float dtype`, a?.dtype.name ?? "nothing", b?.dtype.name ?? "nothing");
}
