/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "b3fb9e02849c5b72c6b716736878d1864e9a39bfdb317aa87a8c10321490ea24",
  v4: "4e60f80377ff6204a7c2fec608d372d0e4d3e99c1e40ed9273e61fcde9fe3c90",
} as const;
