/**
 * Element types of 4 and 8 bits that frozen weights are kept in, in blocks with a factor each: bitsandbytes' NF4, also with quantized
 * factors, and 8-bit integers. `wasm/src/quantized.rs` says how a block lies in memory.
 *
 * @module
 */
import type { DType } from "./dtype.ts";

/** Kernels' name of a format; see `OPS.quantization` in `src/device/kernels/signature.ts`. */
export type Quantization = "nf4" | "int8" | "nf4Nested";

/** An element type whose elements lie in blocks. They are counted from the first element of a parameter. */
export interface QuantizedDType extends DType {
  /** Tells it from floats and integers. */
  readonly kind: "quantized";
  /** Elements of a block, which no cut divides. */
  readonly blockElements: number;
  /** Bytes of a block, which are the last block's too where it is not full. */
  readonly blockBytes: number;
  /** Kernels' name of the format. */
  readonly format: Quantization;
}

function quantized(
  name: string,
  code: number,
  format: Quantization,
  [blockElements, blockBytes]: readonly [number, number],
): QuantizedDType {
  // No file has such a dtype: their values are quantized when they are read.
  const byteLength = blockBytes / blockElements;
  return { name, byteLength, kind: "quantized", code, safetensors: name, blockElements, blockBytes, format };
}

/** 4-bit NormalFloat: 64 elements and their largest magnitude, in float32; 0.5625 bytes an element. */
export const nf4: QuantizedDType = quantized("nf4", 16, "nf4", [64, 4 + 32]);
/** 8-bit integers: 64 elements and their largest magnitude, in float32; 1.0625 bytes an element. */
export const int8: QuantizedDType = quantized("int8", 17, "int8", [64, 4 + 64]);
/** 4-bit NormalFloat whose magnitudes are quantized to 8 bits, 256 of them together; 0.516 bytes an element. */
export const nf4Nested: QuantizedDType = quantized("nf4-nested", 18, "nf4Nested", [64 * 256, 8 + 256 + 256 * 32]);

const QUANTIZED: readonly QuantizedDType[] = [nf4, int8, nf4Nested];

/** A dtype as a quantized one; undefined for all others. */
export function asQuantized(dtype: DType): QuantizedDType | undefined {
  return QUANTIZED.find((one) => one === dtype);
}

/** Bytes of `numel` elements. The first element begins a block, where the dtype has blocks. */
export function bytesOf(dtype: DType, elements: number): number {
  const blocks = asQuantized(dtype);
  if (blocks === undefined) return elements * dtype.byteLength;
  return Math.ceil(elements / blocks.blockElements) * blocks.blockBytes;
}
