/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "46a86522c176cf03d9121171e9bae3c0b6256a507cd8dba0a2f22308db2b3868",
  v4: "e0ef01a87812d0045e144230570079e709ca041cc9e9f4b10dbf43738c4de084",
  "v4-bf16": "f9e6f4e33f66089874c1a065906c0a0f27d7dae29b2739c9029be0211f873143",
  neon: "74dbd23ab60f75be566afb32a5999227213e4b674989f7fbc002413f78dcc77e",
} as const;
