/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "85a9b3ad0e1e30cbe5007e1c797184639afd5bb72d0a45d9b8517d7646cb3e09",
  v4: "2fa67655bb67346523391c0b3f6b799e4884f2e01ffdf00226b527227408a765",
} as const;
