/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "5053bfdb2bf1400bdd173d440f7fdaf1eed2bb3419c25a7feb65979aa5099a9b",
  v4: "c835f00a637fab00d2cb99ab971675312ebef4ed31bcdb66cac15192edaa61fd",
} as const;
