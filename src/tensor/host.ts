/**
 * Copies of values between a tensor and the host.
 *
 * @module
 */
import { type DType, float32, int32, uint8 } from "../dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../errors.ts";
import { holds } from "../held.ts";
import { castTo } from "../ops/convert.ts";
import { isDense } from "../shape.ts";
import { countOf } from "../words.ts";
import { scope } from "./scope.ts";
import type { Tensor } from "./tensor.ts";

/** A typed array of a tensor's values. */
export type HostArray = Float32Array<ArrayBuffer> | Int32Array<ArrayBuffer> | Uint8Array<ArrayBuffer>;

function read<T extends HostArray>(source: Tensor, into: T): T {
  source.device.status.check();
  source.device.copyOut(new Uint8Array(into.buffer), source.ptr);
  return into;
}

/** A host array for all elements of a tensor. Runtimes limit arrays to some GiB. */
function arrayFor({ shape, numel, dtype }: Tensor): HostArray {
  try {
    return dtype === int32 ? new Int32Array(numel) : dtype === uint8 ? new Uint8Array(numel) : new Float32Array(numel);
  } catch (cause) {
    if (!(cause instanceof RangeError)) throw cause;
    throw new ArgumentError(
      `Cannot read all ${numel} elements of [${
        shape.join(", ")
      }]: the runtime has no array of so many; read parts by narrow()`,
      { cause },
    );
  }
}

/** See {@link Tensor.toArray}. */
export function readHost(tensor: Tensor): HostArray {
  using _frame = scope();
  const { dtype } = tensor;
  if (dtype.kind !== "float" && dtype !== int32 && dtype !== uint8) {
    throw new DTypeError("toArray", "it must be a float, int32 or uint8", dtype.name);
  }
  const array = arrayFor(tensor);
  const source = tensor.contiguous();
  if (dtype.kind !== "float" || dtype === float32) return read(source, array);
  const wide = tensor.spawn(tensor.shape, float32, "toArray");
  castTo(wide, source);
  return read(wide, array);
}

/** dtype of a typed array's elements. JavaScript callers may pass any object. */
function dtypeOf(values: object): DType {
  if (values instanceof Float32Array) return float32;
  if (values instanceof Int32Array) return int32;
  if (values instanceof Uint8Array) return uint8;
  throw new DTypeError(
    "copyFromHost",
    "the values must be a Float32Array, Int32Array or Uint8Array",
    values.constructor.name,
  );
}

/**
 * Overwrites all elements of a dense tensor.
 *
 * @throws {ShapeError} if it is not dense, or has another number of elements
 * @throws {DTypeError} if its elements are of another type
 */
export function writeHost(tensor: Tensor, values: HostArray): void {
  if (values.length !== tensor.numel || !isDense(tensor.layout)) {
    throw new ShapeError(
      "copyFromHost",
      `it must be dense and have ${countOf(values.length, "element")}`,
      tensor.shape,
    );
  }
  const dtype = dtypeOf(values);
  if (tensor.dtype !== dtype) throw new DTypeError("copyFromHost", `the values are ${dtype.name}`, tensor.dtype.name);
  tensor.buffer.version++;
  tensor.device.copyIn(tensor.ptr, new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
}

/**
 * A scalar of the same dtype and device.
 *
 * @param op the op that takes the scalar
 * @throws {ArgumentError} if the dtype does not hold the value
 */
export function scalar(like: Tensor, value: number, op: string): Tensor {
  if (!holds(like.dtype, value)) {
    const { name } = like.dtype;
    throw new ArgumentError(
      `Cannot apply '${op}' to ${name} and ${value}: give a value that ${name} holds, or cast by to(float32)`,
    );
  }
  const made = like.spawn([], like.dtype, "scalar");
  like.device.kernels.fill({ dtype: like.dtype, n: 1, value, dst: made.ptr });
  return made;
}
