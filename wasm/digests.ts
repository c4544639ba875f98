/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "67d6b7a370061a89fa3b281f79efad3575a085a804a183cfa1cfe3536ca6fa1a",
  v4: "325854a8c9e2f51c20e36881c845af731f45517399e7a90c1a597c905ca53155",
  "v4-bf16": "05e5893d333d6463e5239089fa75bbb5da0c3020f5826e91dd8d5ab0bfaf6226",
  neon: "c43d4d4070fbc9196a1021d2d9b40bfbacd6d235ca23bff2435a75abf80e05af",
} as const;
