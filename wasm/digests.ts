/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "111154f01abbfcb59f152c172dd3a09a131902bfbff7ca06bc7b9aedf23c888c",
  v4: "63e4b8a508603e84d74ee5483b225d8b941af55aa4ff62134050a7a54246bfed",
  neon: "3260d20aac8f33efb18cbff78d0e503260ab4d2f5bfce8f257840566c68bd493",
} as const;
