/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "6bc991f80a9d83379e1e30b6635387d2a6736b00943460e7fb6162571f7bf782",
  v4: "9045dfadd59c643f24612a87c0be8562ff02040d07a6630b0110e584971837b5",
  "v4-bf16": "176b7c0d4013f96682b22c9007647caeb1c96ae8a3085cf636e1f1ae8167f2d1",
  neon: "1e2d9664c6fcb99aac44a8e4eb88702ed0fdafd6a60bb4b529463be59ee460c0",
} as const;
