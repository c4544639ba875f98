/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "3abe8113c678c4572a4d918155ac791acea9e039962519677c3833271b164537",
  relaxed: "d94ad05a02e1ae104522461b596e7252ebc709278c906c3611aa9d3515fd8ac5",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "d3efbc94c2b5dee069e67e3a47c5f5e5e7051e8124a005230b8479b1967af18b",
  v4: "6cc094238091f5303a4aed151c697544bf392e69bd8953902331cf0f522b6c5c",
  "v4-bf16": "2df2d8b217b590a05c8a429e262d682f8dd91d70f09acdf93137fdc0f3fc7c97",
  neon: "9efcbf2a7b1d3a0f2369a08d9b60b7769ce608966172707d4520c1efc9cbe291",
} as const;
