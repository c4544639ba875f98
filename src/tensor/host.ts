/**
 * Values between a tensor and the host.
 *
 * @module
 */
import { type DType, float32, int32, uint8 } from "../dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../errors.ts";
import { castTo } from "../ops/convert.ts";
import { isDense } from "../shape.ts";
import { countOf } from "../words.ts";
import { scope } from "./scope.ts";
import type { Tensor } from "./tensor.ts";

/** A typed array that a tensor's values are read into. */
export type HostArray = Float32Array<ArrayBuffer> | Int32Array<ArrayBuffer> | Uint8Array<ArrayBuffer>;

/** Least and largest value of integer dtypes. */
const INTEGER_RANGES: ReadonlyMap<DType, readonly [number, number]> = new Map([
  [uint8, [0, 255]],
  [int32, [-(2 ** 31), 2 ** 31 - 1]],
]);

function read<T extends HostArray>(source: Tensor, into: T): T {
  source.device.status.check();
  source.device.copyOut(new Uint8Array(into.buffer), source.ptr);
  return into;
}

/** See {@link Tensor.toArray}. */
export function readHost(tensor: Tensor): HostArray {
  using _frame = scope();
  const { numel, dtype } = tensor;
  const source = tensor.contiguous();
  if (dtype === int32) return read(source, new Int32Array(numel));
  if (dtype === uint8) return read(source, new Uint8Array(numel));
  if (dtype === float32) return read(source, new Float32Array(numel));
  if (dtype.kind !== "float") throw new DTypeError("toArray", "it must be a float, int32 or uint8", dtype.name);
  const wide = tensor.spawn(tensor.shape, float32, "toArray");
  castTo(wide, source);
  return read(wide, new Float32Array(numel));
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
  const dtype = values instanceof Float32Array ? float32 : values instanceof Int32Array ? int32 : uint8;
  if (tensor.dtype !== dtype) throw new DTypeError("copyFromHost", `the values are ${dtype.name}`, tensor.dtype.name);
  tensor.buffer.version++;
  tensor.device.copyIn(tensor.ptr, new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
}

/**
 * A scalar of the same dtype and device.
 *
 * @param op what it is for
 * @throws {ArgumentError} if that dtype does not hold the value
 */
export function scalar(like: Tensor, value: number, op: string): Tensor {
  const range = INTEGER_RANGES.get(like.dtype);
  if (range !== undefined && !(Number.isInteger(value) && value >= range[0] && value <= range[1])) {
    const { name } = like.dtype;
    throw new ArgumentError(
      `Cannot apply '${op}' to ${name} and ${value}: give a value that ${name} holds, or cast by to(float32)`,
    );
  }
  const made = like.spawn([], like.dtype, "scalar");
  like.device.kernels.fill({ dtype: like.dtype, n: 1, value, dst: made.ptr });
  return made;
}
