/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "4b04552cae901f3d8e9da3a097b38fccf05981d63d07a2a4987bc9b9ea9c1b1f",
  v4: "d006be9090243fefe1762b331d36651e9f5d0c325f4e4ce2d23589524f070d24",
} as const;
