/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "f3e9682e6d1da847c2a26889238afaa4ccd651787be15fdfc627414f9e8bd5ec",
  relaxed: "3083fc53fce2e408aeacaa0eefb9f69c4edeefacb66eb9c19a01f0c6374f9992",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "9f88f6ae7825bff7e2c0cb0ee9bbc339cc6ef39f4440e6acddaca02a7d5c0956",
  v4: "1aa68fa88c57a78be838f26d4cab10911e1b0ab20dc99eb83bd7b643f6ff8cf3",
  "v4-bf16": "82c5d2bcf01362ae39053657812ed45695de55f6f6a5c76c83b4a9dc3cc3514d",
  neon: "45231b76007d6bb940e0d209c85521a3462d1b6a1bcb3364947845592a367ff5",
} as const;
