/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "67d59190331efa9ecf03d43e3b14b88c53594fa68f28ddb18083863ae58ee10d",
  v4: "9f799ef711c434f907934fc4bfaaf687942133828c8877f02cdaad457e14c36e",
  "v4-bf16": "2afa76d1d5ba9621620969c4b1ea9f9265be1ed0102bd9b1e8394790520b2de2",
  neon: "227b6adcb6f5580effb98c1e37d066a0353fead2ab55fa7441606e46a86bbe08",
} as const;
