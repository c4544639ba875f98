/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "7dd64311cb343be5b346ba5a63e65d84c18e6c217d30d1cd5d026d3f5eaab8de",
  relaxed: "dbbe31670da64f9b2c7260c0ccf75e5f6c1996e5da38cc2a3cbd9aec60d2b932",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "4f635adde13ecc6487effa48136b790992d81813476a79ec845b98870af38caf",
  v4: "3c9f380f66d23150431017c1d5b85e69ba15b74c721dc9e579023a40a656eb2f",
  "v4-bf16": "26a850e557e78e86eeb9e68d00af8f74cefa442732de871bd6f81b335cb224e7",
  neon: "320bf2daf2f1486466f3b5411a5ceaf1f511a56b255432147915c54dd162ecec",
} as const;
