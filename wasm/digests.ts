/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "38c7988e0a60d81cee1b1452bf16eee11439fdb93d1215c36451ce86337f480e",
  v4: "a2b7367b9f44047072852d67ec43a47f79baabac257fb8aee81d8f60fb9a72c1",
} as const;
