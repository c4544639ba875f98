/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "fa94c716c3db56023f776c22e0190fb17788edb73b8ef1ff63bccc58abf979d1",
  v4: "6326e7e5628209050ab24321e155902ba01483dd04d32c01c23d2a49324e2aa3",
} as const;
