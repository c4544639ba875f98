/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "887545e20e983c827a5a20700f7bc4c3131b4d36235fe9913b1e3130381279e2",
  v4: "9d8285523d0cecc5f7a41337e8baadd4fe593177cac865bd149954d1e5dbd715",
} as const;
