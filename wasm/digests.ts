/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "563ec7c0b36a1ab64949f3c6c22c58a825b54d23d29116e7ef9928c196342c1a",
  relaxed: "c8658890ad0e06d4409b49b1fc1c71f5fdabd01bacc34cdc78ba35069e1a9e2a",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "8bfd30ad5e16d68c77218e8d7bc6339fa1096f95c50aad955243fc94b8900acc",
  v4: "692d5b25eebbf62817f5671d847335248fec68952b6d4816b1313ff1102c529a",
  "v4-bf16": "3dcd615009276f03d853aa9c3c53b5802c0c3c0629444b9f09c299816f561735",
  neon: "6c03a026ac0cd8d033d1a83ddda8e06c74bc140cf98841f1d18409b8c28b622e",
} as const;
