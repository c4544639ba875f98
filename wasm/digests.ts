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
  v3: "f49a00bbc5da3602ec94ddcf1f5d94bf53a2cc89c011a0de654d3a3a0021a646",
  v4: "544628fe703337293ca9a5304dd898b86314386c2c71a84cb24da8f56efe06bf",
  "v4-bf16": "3f898feffcf180f1fed3755b4e5f0ee70e88f004a7a8eaa30a66d6645cf3c734",
  neon: "11619831577db5ad7a255624bc3a16c1fec82ddfebdc43d820dc6f6f3a8deb05",
} as const;
