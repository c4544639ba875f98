/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "03a9dedc8f8183925315b856114b811e99559677538b4636b1f7debefd75efce",
  v4: "c27478933d610dc0c37d43bc43ead96e0e52346c1c06add4537319635f961afd",
} as const;
