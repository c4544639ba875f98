/**
 * Tensors from values.
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import { type Device, requireDevice } from "../device/device.ts";
import { type DType, float32, int32, requireDType, uint8 } from "../dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../errors.ts";
import { requireAllHeld, requireHeld } from "../held.ts";
import { castTo } from "../ops/convert.ts";
import { checkSeed } from "../random.ts";
import { numelOf, requireShape, type Shape } from "../shape.ts";
import { countOf } from "../words.ts";
import { track } from "./scope.ts";
import type { HostArray } from "./host.ts";
import { Tensor } from "./tensor.ts";

/** Options of a new tensor. */
export interface CreateOptions {
  /** Shape. @default one dim with all values */
  readonly shape?: Shape;
  /** Element type. @default float32 */
  readonly dtype?: DType;
}

/**
 * A tensor with the given values.
 *
 * @param device the device of the tensor
 * @param values row-major
 * @throws {ShapeError} if the shape has another number of elements
 * @throws {DTypeError} if the dtype cannot be made of host values
 * @throws {ArgumentError} if a value is not a number, or not an integer in the range of an integer dtype
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
  if (values?.length === undefined) {
    throw new ArgumentError("Cannot make a tensor: call tensor(device, values), with a device and an array of numbers");
  }
  requireDevice("make a tensor", device);
  requireKnownKeys("make a tensor", options, { shape: true, dtype: true });
  const { shape = [values.length], dtype = float32 } = options;
  requireShape("tensor", shape);
  if (Array.isArray(values[0])) {
    throw new ArgumentError(
      "Cannot make a tensor of nested arrays: give its values flat, and their shape: { shape: [2, 2] }",
    );
  }
  if (numelOf(shape) !== values.length) {
    throw new ShapeError("tensor", `it must have ${countOf(values.length, "element")}`, shape);
  }
  const array = hostArray(values, dtype);
  const made = track(Tensor.empty(device, shape, dtype, "tensor"));
  if (array instanceof Float32Array && dtype !== float32) {
    using wide = tensor(device, array, { shape });
    castTo(made, wide);
    return made;
  }
  return made.copyFromHost(array);
}

/** Typed arrays whose elements are numbers that every float dtype takes. */
const NUMBERS = [Float32Array, Float64Array, Int32Array, Uint32Array, Int16Array, Uint16Array, Int8Array, Uint8Array];

/** The values in a typed array for the device; float32 for float dtypes. */
function hostArray(values: ArrayLike<number>, dtype: DType): HostArray {
  requireDType("tensor", dtype);
  const isFloat = dtype.kind === "float";
  if (!isFloat && dtype !== int32 && dtype !== uint8) {
    throw new DTypeError("tensor", "it must be a float, int32 or uint8", dtype.name);
  }
  const isHeld = isFloat
    ? NUMBERS.some((kind) => values instanceof kind)
    : values instanceof Uint8Array || (values instanceof Int32Array && dtype === int32);
  if (!isHeld) requireAllHeld(dtype, values, `make a tensor of ${dtype.name}`);
  return isFloat ? Float32Array.from(values) : dtype === int32 ? Int32Array.from(values) : Uint8Array.from(values);
}

/**
 * A tensor filled with one value.
 *
 * @throws {ArgumentError} if the value is not a number, or not an integer in the range of an integer dtype
 */
export function full(device: Device, shape: Shape, value: number, dtype: DType = float32): Tensor {
  requireDType("full", dtype);
  requireShape("full", shape);
  requireHeld(dtype, value, "fill a tensor");
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

/** Zeros of the shape and dtype of another tensor. */
export function zerosLike({ device, shape, dtype }: Tensor): Tensor {
  return full(device, shape, 0, dtype);
}

/** Ones of the shape and dtype of another tensor. */
export function onesLike({ device, shape, dtype }: Tensor): Tensor {
  return full(device, shape, 1, dtype);
}

/** Largest number of elements of a host array. */
const MOST_VALUES = 2 ** 32 - 1;

/** Options of {@link arange}. */
export interface ArangeOptions {
  /** The first number. @default 0 */
  readonly start?: number;
  /** The difference of neighbours, which may be negative. @default 1 */
  readonly step?: number;
  /** dtype of the result. @default int32 if all numbers are integers, else float32 */
  readonly dtype?: DType;
}

/**
 * The numbers from `start` to `end`, exclusive, in steps.
 *
 * @throws {ArgumentError} if the step is 0, an argument is not a finite number, or an integer dtype does not hold all results
 * @example
 * ```ts
 * import { openDevice } from "fullyshard/device";
 * import { arange } from "fullyshard/nn";
 * const device = await openDevice("cpu");
 * if (arange(device, 3).toArray().join() !== "0,1,2") throw new Error("unequal");
 * if (arange(device, 2, { start: 1, step: 0.5 }).toArray().join() !== "1,1.5") throw new Error("unequal");
 * ```
 */
export function arange(device: Device, end: number, options: ArangeOptions = {}): Tensor {
  requireKnownKeys("count", options, { start: true, step: true, dtype: true });
  const { start = 0, step = 1 } = options;
  const bounds: readonly unknown[] = [start, end, step];
  if (!bounds.every(Number.isFinite)) {
    throw new ArgumentError(
      `Cannot count from ${String(start)} to ${String(end)} by ${String(step)}: give finite numbers`,
    );
  }
  const { dtype = [start, end, step].every(Number.isInteger) ? int32 : float32 } = options;
  const length = Math.max(0, Math.ceil((end - start) / step));
  if (step === 0) throw new ArgumentError(`Cannot count from ${start} to ${end} by 0: give a step other than 0`);
  if (length > MOST_VALUES) {
    throw new ArgumentError(`Cannot count ${length} numbers from ${start} to ${end}: give at most ${MOST_VALUES}`);
  }
  // Checked before the list is made: the last number is the first that an integer dtype may not hold.
  const what = `count from ${start} to ${end} by ${step}`;
  if (length > 0) { for (const value of [start, start + (length - 1) * step]) requireHeld(dtype, value, what); }
  return tensor(device, Array.from({ length }, (_, i) => start + i * step), { dtype });
}

/**
 * Uniform float32 values in [0, 1) by Philox: element i depends on `key` and i only.
 *
 * @param key an integer from 0 up to 2^53, exclusive
 * @throws {ArgumentError} if the key is out of range
 */
export function rand(device: Device, shape: Shape, key: number): Tensor {
  checkSeed(key, "key");
  requireShape("rand", shape);
  const made = track(Tensor.empty(device, shape, float32, "rand"));
  device.kernels.uniform({ n: made.numel, key, offset: 0, low: 0, high: 1, dst: made.ptr });
  return made;
}

/**
 * Normal float32 values by Philox: element i depends on `key` and i only.
 *
 * @param key an integer from 0 up to 2^53, exclusive
 * @throws {ArgumentError} if the key is out of range
 */
export function randn(device: Device, shape: Shape, key: number): Tensor {
  checkSeed(key, "key");
  requireShape("randn", shape);
  const made = track(Tensor.empty(device, shape, float32, "randn"));
  device.kernels.normal({ n: made.numel, key, offset: 0, mean: 0, std: 1, dst: made.ptr });
  return made;
}
