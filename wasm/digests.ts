/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "deef11099d9cc8adb1807208d598661ea025d00a59df7e6b0ef7d08185162ffb",
  v4: "7364a94d8321a2d3523f02b8087d30f3a0f25863c846b04d7aaaad829bea5c08",
} as const;
