/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "120f95bf44d50c417df1319a15237d233d679ba223ac0ff18f2bc571e90224d8",
  v4: "9520d37406414fdd12878724e87ea3cb210a6f9664f41fcd06c65ac14290a2f6",
  "v4-bf16": "45c9f5e5099c2088b3e564ea2950101c31dfd2188e20cd30eba5faf82368aa71",
  neon: "bc2c2cd76c2c2e4d291d149e679b8e1f78fb731b9a04ec7c265010d90eee0a5f",
} as const;
