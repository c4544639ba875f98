/**
 * Tensors from values.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { type DType, float32, int32, uint8 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { castTo } from "../ops/convert.ts";
import { numelOf, type Shape } from "../shape.ts";
import { countOf } from "../words.ts";
import { track } from "./scope.ts";
import type { HostArray } from "./host.ts";
import { Tensor } from "./tensor.ts";

/** Options of a new tensor. */
export interface CreateOptions {
  /** Shape; default: one dim with all values. */
  readonly shape?: Shape;
  /** Default: float32. */
  readonly dtype?: DType;
}

/**
 * A tensor with the values given.
 *
 * @param device where it lives
 * @param values row-major
 * @throws {ShapeError} if the shape has another number of elements
 * @throws {DTypeError} if the dtype cannot be made of host values
 * @example
 * ```ts
 * import { openDevice } from "fullyshard/device";
 * import { tensor } from "fullyshard";
 * const device = await openDevice("cpu");
 * using x = tensor(device, [1, 2, 3, 4], { shape: [2, 2] });
 * if (x.matmul(x).toArray()[3] !== 22) throw new Error("wrong");
 * ```
 */
export function tensor(device: Device, values: ArrayLike<number>, options: CreateOptions = {}): Tensor {
  const { shape = [values.length], dtype = float32 } = options;
  if (numelOf(shape) !== values.length) {
    throw new ShapeError("tensor", `it must have ${countOf(values.length, "element")}`, shape);
  }
  const made = track(Tensor.empty(device, shape, dtype, "tensor"));
  if (dtype.kind === "float" && dtype !== float32) {
    using wide = tensor(device, values, { shape });
    castTo(made, wide);
    return made;
  }
  return made.copyFromHost(hostArray(values, dtype));
}

function hostArray(values: ArrayLike<number>, dtype: DType): HostArray {
  if (dtype === float32) return Float32Array.from(values);
  if (dtype === int32) return Int32Array.from(values);
  if (dtype === uint8) return Uint8Array.from(values);
  throw new DTypeError("tensor", "it must be a float, int32 or uint8", dtype.name);
}

/** A tensor with one value everywhere. */
export function full(device: Device, shape: Shape, value: number, dtype: DType = float32): Tensor {
  const made = track(Tensor.empty(device, shape, dtype, "full"));
  device.kernels.fill({ dtype, n: made.numel, value, dst: made.ptr });
  return made;
}

/** A tensor of zeros. */
export function zeros(device: Device, shape: Shape, dtype: DType = float32): Tensor {
  return full(device, shape, 0, dtype);
}

/** A tensor of ones. */
export function ones(device: Device, shape: Shape, dtype: DType = float32): Tensor {
  return full(device, shape, 1, dtype);
}

/** Normal float32 values by Philox: element i depends on `key` and i only. */
export function randn(device: Device, shape: Shape, key: number): Tensor {
  const made = track(Tensor.empty(device, shape, float32, "randn"));
  device.kernels.normal({ n: made.numel, key, offset: 0, mean: 0, std: 1, dst: made.ptr });
  return made;
}
