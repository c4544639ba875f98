/**
 * The element types in which weights are written into GGUF files, and the bytes of float32 values in each.
 *
 * @module
 */
import { bfloat16, float16, float32 } from "../../dtype.ts";
import { NonFiniteError } from "../../errors.ts";
import { encodeFloats } from "../format/float_bytes.ts";

/** The storage of a tensor's elements. */
export interface Encoding {
  /** ggml's name of it. */
  readonly name: "F32" | "F16" | "BF16" | "Q8_0";
  /** ggml's number of it (`enum ggml_type`). */
  readonly ggmlType: number;
  /** llama.cpp's number of a file whose matrices are stored so (`enum llama_ftype`). */
  readonly fileType: number;
  /** Elements that are encoded together: rows must be multiples of it. */
  readonly blockLength: number;
  /** Bytes of that number of elements. */
  readonly byteLength: (numel: number) => number;
  /**
   * The bytes of values, a whole number of blocks.
   *
   * @param tensor its name, for the message
   * @throws {NonFiniteError} for values that would become infinite, or that blocks cannot hold
   */
  readonly encode: (values: Float32Array<ArrayBuffer>, tensor: string) => Uint8Array;
}

/** The values as they are. */
export const F32: Encoding = {
  name: "F32",
  ggmlType: 0,
  fileType: 0,
  blockLength: 1,
  byteLength: (numel) => 4 * numel,
  encode: (values, tensor) => encodeFloats(float32, values, tensor),
};

/** Float16, rounded to nearest-even. */
export const F16: Encoding = {
  name: "F16",
  ggmlType: 1,
  fileType: 1,
  blockLength: 1,
  byteLength: (numel) => 2 * numel,
  encode: (values, tensor) => encodeFloats(float16, values, tensor),
};

/** Bfloat16, rounded to nearest-even. */
export const BF16: Encoding = {
  name: "BF16",
  ggmlType: 30,
  fileType: 32,
  blockLength: 1,
  byteLength: (numel) => 2 * numel,
  encode: (values, tensor) => encodeFloats(bfloat16, values, tensor),
};

const BLOCK = 32;
const BLOCK_BYTES = 2 + BLOCK;

/**
 * Blocks of 32 integers of 8 bits with one float16 factor: the largest magnitude divided by 127. Bits equal
 * `quantize_row_q8_0_ref` in ggml's `ggml-quants.c`: the factor's reciprocal is rounded to float32, and halves are rounded away
 * from zero.
 */
export const Q8_0: Encoding = {
  name: "Q8_0",
  ggmlType: 8,
  fileType: 7,
  blockLength: BLOCK,
  byteLength: (numel) => numel / BLOCK * BLOCK_BYTES,
  encode: (values, tensor) => {
    const numBlocks = values.length / BLOCK;
    const out = new Uint8Array(numBlocks * BLOCK_BYTES);
    const integers = new Int8Array(out.buffer);
    const factors = new DataView(out.buffer);
    for (let block = 0; block < numBlocks; block++) {
      const from = block * BLOCK;
      let largest = 0;
      for (let i = from; i < from + BLOCK; i++) {
        const magnitude = Math.abs(values[i] ?? NaN);
        if (!(magnitude < Infinity)) {
          throw new NonFiniteError(`'${tensor}' has ${values[i]}, which q8_0 cannot hold: export it as f32`);
        }
        if (magnitude > largest) largest = magnitude;
      }
      const factor = Math.fround(largest / 127);
      const inverse = factor === 0 ? 0 : Math.fround(1 / factor);
      const to = block * BLOCK_BYTES;
      factors.setFloat16(to, factor, true);
      if (factors.getUint16(to, true) === 0x7c00) {
        throw new NonFiniteError(`'${tensor}' has ${largest}, too large for the factor of q8_0: export it as f32`);
      }
      for (let i = 0; i < BLOCK; i++) {
        const scaled = Math.fround((values[from + i] ?? NaN) * inverse);
        const magnitude = Math.abs(scaled);
        const whole = Math.floor(magnitude);
        const rounded = magnitude - whole >= 0.5 ? whole + 1 : whole;
        integers[to + 2 + i] = scaled < 0 ? -rounded : rounded;
      }
    }
    return out;
  },
};

/** All of them, by the names that commands take. */
export const ENCODINGS: Readonly<Record<"f32" | "f16" | "bf16" | "q8_0", Encoding>> = {
  f32: F32,
  f16: F16,
  bf16: BF16,
  q8_0: Q8_0,
};
