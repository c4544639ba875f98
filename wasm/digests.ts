/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "4bd243d564d24f79c8634572cae2eee530b7557d945389d22c7f9668d28f62a6",
  v4: "8bf4ba9ea09e02afc191dc78a36576caf29e15f155196958f8eb555e387a7ddf",
} as const;
