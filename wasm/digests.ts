/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "da99d3474800d76a8b2d04100bd1b702e7779baea3a80c5cb29ce74586938c92",
  v4: "476b6493268e0dc1f237a543c69e034c64cee46a284eb4aa4940cf886ee95428",
} as const;
