/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "69eb0843f7b960dcd8f49fa1673f1369493978c88471f60ec8054200574ab773",
  v4: "7eaa2917b64bdfe89d8e4a7942585cc5df9700455b1aa57c5e5c0bd6bafaf132",
  neon: "5bd2d91fed8329c7c6b2bd4a6123e88e76e0d73bfaa3fac85d08820550f7bae7",
} as const;
