/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "d5304c5c3d0360f2b143db4b186f369654849d674faa6cf268cd8ef2e8e0e467",
  v4: "e4b40fe76823224af01444e45e72ee19b2eb413141ede37e43fa79928701b759",
  neon: "8ab1a47f809ff6fedc49c7a42bac76fe91abf88bf82554dbaa543e1197a70507",
} as const;
