/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by the level of x86-64 that a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "5cbd079ba74dcdb069043468c8f54e94c032e94f19ea8d5f7d6250f850fa9994",
  v4: "8756a98481c98bfbdb710270633089c402682f2cb66d87dbe182a58dd18e28c1",
} as const;
