/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "2a05cc290e2f213e92de7064508ecbe4a1a6b109ab6da16aa6299bb1106e0c61",
  v4: "ba4310c4d3e0569621280f7a9c8293157e389b40d53ea045b770cd831fe5f4f9",
} as const;
