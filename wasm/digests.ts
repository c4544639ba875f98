/**
 * SHA-256 of the native libraries in `wasm/pkg`. Made by `scripts/build_wasm.sh`.
 *
 * @module
 */

/** Hexadecimal digests, by what a library is built for. */
export const LIBRARY_DIGESTS = {
  v3: "c68758a1b79d3ab886eeeac3f66c9bbad8e80aa7707afc891299ccdf45af7acb",
  v4: "d6d3c43738fc6c72fbb0a723da3c481bdf094c18702fd5ab4e464f9855fb9023",
  "v4-bf16": "9980963ba2aa02b797d3b80cd9c5d4af88c225dcbb5623932feb31606358f9ad",
  neon: "f951df390395270e9f8b1209065da819b8cc007c7bcfc434b1435676998c2dc8",
} as const;
