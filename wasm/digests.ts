/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "4956dd7f1388776ac42a87e9464e62105cfb44248adc79b3e767b237f4602bfe",
  relaxed: "3b40dfa96e2995a6ac3763e06558fdf603567947f72dd60d2b0b12a4a34a9d14",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "1338f6dbceb5ff71ee269886ead5dd3445a57ef21e33170d17e29475cadb7acb",
  v4: "a02ab430ed4baf0c7e7cc727fadfa025929f89f547ad8b6769b8785a2b5377b1",
  "v4-bf16": "ed49b66a41407acbec9d7d59455b4af02d6b7dadec39a807c46e5a287fbbe0de",
  neon: "c0ca1db9bf937836cea21d6644fccc6880c6f9c2796bef947ffc637744e8e2a5",
} as const;
