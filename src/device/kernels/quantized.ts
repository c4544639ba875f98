/**
 * Kernels on quantized weights, which lie in blocks; `wasm/src/quantized.rs` describes them.
 *
 * @module
 */

export const QUANTIZED_KERNELS = {
  /** `dst = src`, each block by its own factor. The last block may lack elements, and has room for all. */
  quantize: {
    values: { format: "quantization", n: "size", blocks: "size", blockBytes: "size" },
    arrays: {
      dst: { writes: "uint8", shape: ["blocks", "blockBytes"] },
      src: { reads: "float32", shape: ["n"] },
    },
  },
  /** `dst = src`, rounded to nearest even. */
  dequantize: {
    values: { dtype: "float", format: "quantization", n: "size", blocks: "size", blockBytes: "size" },
    arrays: {
      dst: { writes: "dtype", shape: ["n"] },
      src: { reads: "uint8", shape: ["blocks", "blockBytes"] },
    },
  },
  /**
   * `c = alpha * a @ op(b) + beta * c`, where b is dense and quantized: the bits of `gemm` over what `dequantize` gives in `dtype`, a
   * panel at a time.
   */
  gemmQuantized: {
    flops: [2, "m", "n", "k"],
    values: {
      dtype: "float",
      outDtype: { widens: "dtype" },
      format: "quantization",
      transB: "switch",
      m: "size",
      n: "size",
      k: "size",
      alpha: "f32",
      beta: "f32",
      lda: "size",
      ldc: "size",
      blocks: "size",
      blockBytes: "size",
    },
    arrays: {
      a: { reads: "dtype", shape: ["m", "k"], strides: ["lda"] },
      b: { reads: "uint8", shape: ["blocks", "blockBytes"] },
      c: { writes: "outDtype", updatesIf: "beta", shape: ["m", "n"], strides: ["ldc"] },
    },
  },
} as const;
