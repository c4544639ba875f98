/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "6ceb410cda11d9a91375f4da6c149fadb2fbdea1a23df88d93167d10794f6316",
  relaxed: "de73a698bc3c9e00b07d7cb7dd6f037057b663890d68ac0af5fe02fee5cacffc",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "08c3da6c08b650c07a6b47f2e5d132640aeb9397f46a1eda1581c561ecae9c46",
  v4: "a70a638365a6ef8c24018b12a799ee17e6bc4ba57a2f7824e6145f440dca3c78",
  "v4-bf16": "84d09343ea8c6785f5284158fc27ef38bb9e0a16586667c37593e268ddd30a3a",
  neon: "02d126a6e500d52194757651c0344f9e9f2ba80b60132da1747fe419cfe1a239",
} as const;
