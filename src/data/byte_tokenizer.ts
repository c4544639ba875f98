/**
 * The tokenizer that needs no file: each byte of a text's UTF-8 is a token.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** Ids 0 to 255 are bytes; then comes the end of a text. */
const EOS = 256;

/** Bytes as tokens: 257 ids. Bytes that are no UTF-8 decode to U+FFFD. */
export const BYTE_TOKENIZER: Tokenizer = {
  path: "bytes",
  files: [],
  vocabSize: EOS + 1,
  eosId: EOS,
  fingerprint: "bytes",
  encode: (text) => [...new TextEncoder().encode(text)],
  decode(ids) {
    const list = [...ids];
    const bad = list.find((id) => !Number.isInteger(id) || id < 0 || id > EOS);
    if (bad !== undefined) throw new ArgumentError(`Ids of bytes are at most ${EOS}, got ${bad}`);
    return new TextDecoder().decode(Uint8Array.from(list.filter((id) => id !== EOS)));
  },
};
