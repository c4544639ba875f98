/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "71c1787be0438672634d11ffab1aecb0f663e6dcc1bd53d591a28bc1b0b116e6",
  relaxed: "be08158e24d3a4d6f4647269599ade5b871cb32fade87eacfc7353532d815bd8",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "b509873e1b126ccb4f7b9ea50ecfa960de701884007560dc161fef063aadbe40",
  v4: "5711143dee3fad131c6662cf8e8df16f2aaec60c2063db3f15f4d2974436572c",
  "v4-bf16": "1f2b0c9636c3bc1e2201a2c063a2b323e3405c8263cb037d070b5299bdd66024",
  neon: "67f85b84070e5c0085e0cbd66d17c68b4992fcf2810204786c3bab6445a319e3",
} as const;
