/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "475dc00243c72fe1041b38ea4433a3fd2efa910dac909b2bb72b2aaecf6c1f02",
  relaxed: "274b98282f91040658efffa2ce6c060a3394e78a83378aaea9ad6690b76237c3",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "47ac21320cd6a77492b62a2e914489def32389bcdb33470694dc08511a7bcacb",
  v4: "77a2daf9ac298e6b507258d9710c6000466a597c7a7dbd953739a8ad50ea562b",
  "v4-bf16": "f4d804f31e7d6cb122b306a21f1f344ffdc6d7e728f30c7db8a8193481f6ab1d",
  neon: "2fefec354c47b1225636bc7ec5b4975e91d8efea85a9d4bf0ce34a18bbedb47c",
} as const;
