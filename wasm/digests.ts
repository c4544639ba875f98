/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "175b088550ea7f849dbf4061d35edb2b93d65a979d9d12f8f6a5ab1f6b951989",
  v4: "f560340c2b3175e7e1967834c2bfb225adbc0fe0ccb7655090fcdb871ffb2fd8",
  neon: "0979874076828a6abf3de5aed1ea3cfadb27f46532ef2d79147ac735352860d1",
} as const;
