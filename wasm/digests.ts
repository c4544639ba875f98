/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "b389ed3622ba595124e28195c056fd10c16078e174378034fd830451a2cc74ac",
  v4: "da2b9d2e7b07b1464859b52c18d18d3f0e6e8b426330e4fabe617ee9f747f388",
  neon: "15dc3ea49c429d31c0258dfc591a12623acb3ff400911ffe9c58d842693697c0",
} as const;
