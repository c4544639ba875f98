/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "69ac07ec0f67668b3f196322d545ca9bb6fe7d9fde4f6d43267f946b32107138",
  v4: "98b7438f4153d70f75d1bbf57bf41cb8de5e0dc34ed4a98fae039fb0a0653b8b",
} as const;
