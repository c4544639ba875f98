/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "e86819fc850ec55011915af6e35764d5403070eb07263253e54d45e92d3546e7",
  v4: "af7c59bed8d07f09b56a85e1a3d330dac467c1fec7a533848b3298a263e2c740",
} as const;
