/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "4bdd09a1e7e4cecd0dc8385ac95f9811abf62cdd92a6d106f2bcf4a67dd957e0",
  v4: "f2df63463a8e3a93fbcc233d35942ce8cfb41a16b3b8aade6feb3d2101bf589c",
} as const;
