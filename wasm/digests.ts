/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "b2c4b8077c200e561088534b848065d8135b6ca2a2fa8c2a7d7078ca4edbc2ad",
  v4: "34b89acb5abb0bfe4019bc2b50f727759740cd0285658c57f0d9ee45c5c5774f",
  "v4-bf16": "6074e5e07f570ae5f3322b127214b44c9887c2fd2d1ed4b02200708e6b6f1ff4",
  neon: "5332895bb1e4b684609526cc104f57a083f36e78ba4d872bcb316fc846bffc80",
} as const;
