/**
 * SHA-256 of the modules and the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests of modules, by their arithmetic. */
export const MODULE_DIGESTS = {
  strict: "508417704324ac91f81b52fcc60767bb474fe68609c10595453f8bac75176e21",
  relaxed: "02c7cf623e833688030fd1f2e9592194ab9e324c1df6dddb0e869f660d79b988",
} as const;

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "3925cdd86ba16a8645c2b7698841925fafd2e264b2a0296b30fddeff2429b6df",
  v4: "fff26de68fe2fc70fb66fa9bb3925c983d76470e3171d2bfc5b05ef8c42d7d04",
  "v4-bf16": "9c38ed2a3d64d679300457a8d6f40f684750fa4f23e9412521069da7be5af933",
  neon: "08b45df0a6672a6b7890fc0d46d1fc5da31cefa786e889b2a5ae8f8981239c13",
} as const;
