/**
 * Floating-point bytes of files to and from float32 arrays, on the host. Integers and kernels' casts on a device are left
 * to others. All bytes are little-endian, as the files and every supported machine are.
 *
 * @module
 */
import { bfloat16, type DType, float16, float32 } from "../../dtype.ts";
import { ArgumentError, DTypeError, NonFiniteError } from "../../errors.ts";
import { firstOverflow } from "../../held.ts";

/** Dtypes of weights that can be read, by safetensors' names, with bytes of an element. */
const WIDTHS: ReadonlyMap<string, number> = new Map([["F32", 4], ["F16", 2], ["BF16", 2], ["F64", 8]]);
/** The dtypes that these functions convert. */
export const FLOAT_CODES: readonly string[] = [...WIDTHS.keys()];

/** Bytes of an element of one of these dtypes. @throws {DTypeError} for other dtypes */
export function floatWidth(code: string): number {
  const width = WIDTHS.get(code);
  if (width !== undefined) return width;
  throw new DTypeError("decodeToFloat32", `the dtype must be one of ${FLOAT_CODES.join(", ")}`, code);
}

/**
 * Float32 values of floating-point bytes: exact for `F16`, `BF16` and `F32`, rounded to nearest-even for `F64`.
 *
 * @param bytes the elements, at any alignment
 * @param out receives the elements, one for each; a new array if left out
 * @returns `out`
 * @throws {DTypeError} for other dtypes
 * @throws {ArgumentError} if `bytes` is not a whole number of elements, or `out` has another length
 */
export function decodeToFloat32(code: string, bytes: Uint8Array, out?: Float32Array): Float32Array {
  const width = floatWidth(code);
  const count = bytes.length / width;
  const result = out ?? new Float32Array(Math.ceil(count));
  if (result.length !== count) {
    throw new ArgumentError(`Cannot decode ${bytes.length} bytes of ${code} into ${result.length} elements`);
  }
  if (code === "F32") {
    new Uint8Array(result.buffer, result.byteOffset, result.byteLength).set(bytes);
    return result;
  }
  const { buffer, byteOffset } = bytes.byteOffset % width === 0 ? bytes : bytes.slice();
  if (code === "F64") {
    result.set(new Float64Array(buffer, byteOffset, count));
  } else if (code === "F16") {
    result.set(new Float16Array(buffer, byteOffset, count));
  } else {
    const halves = new Uint16Array(buffer, byteOffset, count);
    const words = new Uint32Array(result.buffer, result.byteOffset, count);
    halves.forEach((half, i) => void (words[i] = half << 16));
  }
  return result;
}

/**
 * Bytes of float32 values in a dtype, rounded to nearest-even; float32's are the values' own memory. Infinities and NaN stay what they are.
 *
 * @param tensor the name of what has the values, for the message
 * @throws {NonFiniteError} for a finite value that would become infinite
 * @throws {DTypeError} for other dtypes than float32, bfloat16 and float16
 */
export function encodeFloats(dtype: DType, values: Float32Array<ArrayBuffer>, tensor: string): Uint8Array {
  if (dtype === float32) return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  if (dtype !== bfloat16 && dtype !== float16) {
    throw new DTypeError("encodeFloats", "the dtype must be float32, bfloat16 or float16", dtype.name);
  }
  const beyond = firstOverflow(dtype, values);
  if (beyond !== undefined) {
    const wider = dtype === float16 ? "bfloat16 or float32" : "float32";
    throw new NonFiniteError(`'${tensor}' has ${beyond}, which ${dtype.name} cannot hold: use ${wider} for it`);
  }
  return dtype === bfloat16 ? encodeBfloat16(values) : new Uint8Array(Float16Array.from(values).buffer);
}

/** Bytes of float32 values as bfloat16; a NaN stays a NaN. */
function encodeBfloat16(values: Float32Array): Uint8Array {
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const halves = new Uint16Array(values.length);
  words.forEach((word, i) => {
    // Rounding could carry a NaN's mantissa over into infinity, so it is cut, with the quiet bit set.
    halves[i] = (word & 0x7fffffff) > 0x7f800000 ? (word >>> 16) | 0x40 : (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
  });
  return new Uint8Array(halves.buffer);
}
