/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "55539d7097fc0e2f172426f53f71fc7715057ecf673c4bf6ace54fc5b5ba8592",
  v4: "2c8ec2daa586f07b6ffbf48c69e2ce06bdcf48b3858ea698974fd08103f39ef6",
} as const;
