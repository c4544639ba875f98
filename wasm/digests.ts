/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "387bc80a9100c4071c6772296c67f28aa5134b82d5455b06cf83bc4088638409",
  relaxed: "6878e2273f8a338797c71b5d40e7a41a65fab9fd3583e5873c0d08ead8b4ccea",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "d16c3e45b63e1d829f476ff03f84c39b81aa4c86d60381c034003ebde28185bf",
  v4: "0e1899edec28e116f3ea0756b0177ae211dc1956caf6a0054129dd1bc466ef5d",
  "v4-bf16": "121f6e951cab9ab927fae67da6dc01d5d3ee10b4a7eb0219bb3102e7ae37fb48",
  neon: "fb459fd3ad0e2681a394613b8f170baa225ced16dcd30ebd772bacac5c621a29",
} as const;
