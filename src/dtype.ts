/**
 * Element types. One object a type, compared by identity; strings are parsed once, at the edge, by {@link dtypeFrom}.
 *
 * @module
 */
import { DTypeError } from "./errors.ts";

/** An element type. */
export interface DType {
  /** Name, as PyTorch and Hugging Face's `config.json` spell it. */
  readonly name: string;
  /** Bytes of one element; a fraction where elements lie in blocks. */
  readonly byteLength: number;
  /** The kind of its arithmetic; quantized elements are factors of products only. */
  readonly kind: "float" | "int" | "quantized";
  /** The dtype's number in kernel arguments (`wasm/src/dtype.rs`). */
  readonly code: number;
  /** The dtype's name in a safetensors header. */
  readonly safetensors: string;
}

/** IEEE 754 binary32. */
export const float32: DType = { name: "float32", byteLength: 4, kind: "float", code: 0, safetensors: "F32" };
/** The upper half of a binary32: 8 exponent bits, 7 mantissa bits. */
export const bfloat16: DType = { name: "bfloat16", byteLength: 2, kind: "float", code: 1, safetensors: "BF16" };
/** IEEE 754 binary16: 5 exponent bits, 10 mantissa bits; beyond 65504 it is infinite, so gradients need a `GradScaler`. */
export const float16: DType = { name: "float16", byteLength: 2, kind: "float", code: 6, safetensors: "F16" };
/** Signed 32-bit integers: token ids, labels, positions. */
export const int32: DType = { name: "int32", byteLength: 4, kind: "int", code: 2, safetensors: "I32" };
/** Unsigned bytes: masks. */
export const uint8: DType = { name: "uint8", byteLength: 1, kind: "int", code: 3, safetensors: "U8" };
/** Signed 64-bit integers: exact sums. */
export const int64: DType = { name: "int64", byteLength: 8, kind: "int", code: 4, safetensors: "I64" };
/** IEEE 754 binary64: counts and norms that leave the device. */
export const float64: DType = { name: "float64", byteLength: 8, kind: "float", code: 5, safetensors: "F64" };

/** All element types. */
export const DTYPES: readonly DType[] = [float32, bfloat16, float16, int32, uint8, int64, float64];
/** Element types that kernels compute in; sums are wider inside. */
export const COMPUTE_DTYPES: readonly DType[] = [float32, bfloat16, float16];

/**
 * Refuses what is no dtype, such as a name: types are not checked where programs run.
 *
 * @throws {DTypeError}
 */
export function requireDType(op: string, dtype: DType): void {
  if (DTYPES.includes(dtype)) return;
  throw new DTypeError(op, `a dtype is a value, such as float32 of 'fullyshard', and no name`, `${String(dtype)}`);
}

/**
 * The dtype of a name.
 *
 * @param name PyTorch's name (`float32`, `torch.float32`), a short one (`f32`, `bf16`, `fp16`) or safetensors' (`F32`, `BF16`)
 * @throws {DTypeError} if there is none of that name
 * @example
 * ```ts
 * import { bfloat16 } from "fullyshard";
 * import { dtypeFrom } from "fullyshard/device";
 * if (dtypeFrom("bf16") !== bfloat16) throw new Error("unequal");
 * ```
 */
export function dtypeFrom(name: string): DType {
  const plain = name.replace(/^torch\./, "").toLowerCase();
  const long = plain.replace(/^bf(?=\d)/, "bfloat").replace(/^fp?(?=\d)/, "float").replace(/^i(?=\d)/, "int")
    .replace(/^u(?=\d)/, "uint");
  const found = DTYPES.find((dtype) => dtype.name === long);
  if (found === undefined) {
    throw new DTypeError("dtypeFrom", `the name must be one of ${DTYPES.map((d) => d.name).join(", ")}`, name);
  }
  return found;
}
