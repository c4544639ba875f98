/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "e43153e326bddc62fee761abea87c2f6c700bbf7af61c9271d6fee26b2d22845",
  v4: "f14780658cf7b8f45a0279b564421cbf132b3e4774cba259a8a7748aa439db68",
} as const;
