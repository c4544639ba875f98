/**
 * Text to token ids and back: by its bytes, which needs no file, or by a Hugging Face `tokenizer.json`, whose parts lie in
 * `tokenizers/`. This file reads the files, finds the end-of-text token and fingerprints what changes ids.
 *
 * Invariant: text is encoded without template tokens, so packed documents hold only the tokens that packing adds.
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import { ArgumentError } from "../errors.ts";
import { sha256 } from "../runtime/checksum.ts";
import { parseJsonObject } from "../json.ts";
import { pathKind, readBytes } from "../runtime/files.ts";
import { findEndOfText } from "./end_of_text.ts";
import { JsonPart, TOKENIZER_DEPTH } from "./tokenizers/part.ts";

/** Turns text into token ids and back. */
export interface Tokenizer {
  /** The `tokenizer.json` it was read from. */
  readonly path: string;
  /** All files it was read from, to be kept beside a model. */
  readonly files: readonly string[];
  /** One more than the largest id. */
  readonly vocabSize: number;
  /** Id of the end-of-text token; `undefined` if no file names one. */
  readonly eosId: number | undefined;
  /** One line where the end of text was found in an unusual place, or files disagree about it. */
  readonly eosNote?: string | undefined;
  /** Changes when an encoding may change: SHA-256 of its files, hexadecimal. */
  readonly fingerprint: string;
  /**
   * Ids of a text, without any token that a template would add. A special token spelled out in the text counts as one.
   * As in Python, a BPE tokenizer that lacks both a character and an unknown token leaves the character out.
   *
   * @throws {ArgumentError} if some of the text has no id, or holds half of a surrogate pair
   */
  encode(text: string): number[];
  /**
   * Text of ids.
   *
   * @param options `skipSpecial`: leave out tokens such as the end of text (default false)
   * @throws {ArgumentError} if an id is out of range
   */
  decode(ids: Iterable<number>, options?: { readonly skipSpecial?: boolean }): string;
}

/** Options of {@link loadTokenizer}. */
export interface LoadTokenizerOptions {
  /** The end-of-text token. @default the one that the folder's files name */
  readonly eosToken?: string | undefined;
}

/** Changes whenever the same files give other ids than before, so that tokenized text is not taken from a cache. */
const ENCODING = "tokenizers 0.23.3";

/**
 * Reads a tokenizer. It gives the same ids and texts as Python's `tokenizers`.
 *
 * The end of text is the `eos_token` of `tokenizer_config.json` or `special_tokens_map.json`, else the first `eos_token_id` of
 * `generation_config.json` or `config.json`, else a special added token with a usual name such as `<|endoftext|>`.
 *
 * @param path a `tokenizer.json`, or a directory that has one; the other files are read if they lie beside it
 * @throws {FileError} if there is none
 * @throws {CheckpointError} if a file is not what its name says, or has a part or an option that is not supported, by name
 * @example
 * ```ts
 * import { loadTokenizer } from "fullyshard/data";
 * const tokenizer = await loadTokenizer("examples/data");
 * if (tokenizer.decode(tokenizer.encode("interface A {}")) !== "interface A {}") throw new Error("unequal");
 * ```
 */
export async function loadTokenizer(path: string, options: LoadTokenizerOptions = {}): Promise<Tokenizer> {
  requireKnownKeys("load a tokenizer", options, { eosToken: true });
  const file = pathKind(path) === "directory" ? `${path}/tokenizer.json` : path;
  const besides = ["tokenizer_config.json", "special_tokens_map.json"].map((name) => file.replace(/[^/]*$/, name));
  const [configFile = ""] = besides;
  const { tokenizer, bytes, config, configBytes } = await readPipeline(file, configFile);
  let vocabSize = 0;
  for (const id of tokenizer.vocab.values()) vocabSize = Math.max(vocabSize, id + 1);
  const eos = await findEndOfText(file, tokenizer, config, options.eosToken);
  const { cleanUp } = await import("./tokenizers/decoders.ts");
  const cleansUp = config["clean_up_tokenization_spaces"] === true;
  return {
    path: file,
    files: [file, ...besides.filter((one) => pathKind(one) !== "none")],
    vocabSize,
    eosId: eos.id,
    eosNote: eos.note,
    fingerprint: sha256([ENCODING, "\0", bytes, "\0", configBytes]),
    encode(text): number[] {
      requireWellFormed(text);
      try {
        return tokenizer.encode(text);
      } catch (cause) {
        if (cause instanceof ArgumentError || !(cause instanceof RangeError)) throw cause;
        // V8 keeps a place to go back to for each character that a repetition has matched.
        const remedy = "divide it, or tokenize it under Bun";
        const what = "Cannot encode text with a word of millions of characters under this runtime";
        throw new ArgumentError(`${what}: ${remedy} (${cause.message})`, { cause });
      }
    },
    decode(ids, { skipSpecial = false } = {}): string {
      const list = [...ids];
      const bad = list.find((id) => !Number.isInteger(id) || id < 0 || id >= vocabSize);
      if (bad !== undefined) throw new ArgumentError(`Ids of ${file} are below ${vocabSize}, got ${bad}`);
      const decoded = tokenizer.decode(list, skipSpecial);
      return cleansUp ? cleanUp(decoded) : decoded;
    },
  };
}

/** The parts of a `tokenizer.json`, the `tokenizer_config.json` beside it, and the bytes of both; `{}` for one that is not there. */
async function readPipeline(file: string, configFile: string) {
  // Its rules for Unicode are large, and a tokenizer of bytes needs none.
  const { TokenizerPipeline } = await import("./tokenizers/pipeline.ts");
  const rules = { what: "file", maxDepth: TOKENIZER_DEPTH };
  const bytes = await readBytes(file);
  const json = parseJsonObject(bytes, { ...rules, file });
  const isConfigured = pathKind(configFile) !== "none";
  const configBytes = isConfigured ? await readBytes(configFile) : new TextEncoder().encode("{}");
  const config = parseJsonObject(configBytes, { ...rules, file: configFile });
  const decoder = config["added_tokens_decoder"] ?? undefined;
  const more = decoder === undefined ? undefined : new JsonPart(decoder, configFile, "added_tokens_decoder");
  return { tokenizer: new TokenizerPipeline(json, file, more), bytes, config, configBytes };
}

/**
 * The id of each token of a tokenizer's files, added tokens included.
 *
 * @param file a `tokenizer.json`; the `tokenizer_config.json` beside it is read, if it is there
 * @throws {FileError} {@link CheckpointError} as {@link loadTokenizer}
 */
export async function readVocabulary(file: string): Promise<ReadonlyMap<string, number>> {
  const { tokenizer } = await readPipeline(file, file.replace(/[^/]*$/, "tokenizer_config.json"));
  return tokenizer.vocab;
}

/** Ids 0 to 255 are bytes; then comes the end of a text. */
const BYTES_EOS = 256;

/** The tokenizer that needs no file, each byte of a text's UTF-8 a token: 257 ids. Bytes that are no UTF-8 decode to U+FFFD. */
export const BYTE_TOKENIZER: Tokenizer = {
  path: "bytes",
  files: [],
  vocabSize: BYTES_EOS + 1,
  eosId: BYTES_EOS,
  fingerprint: "bytes",
  encode(text) {
    requireWellFormed(text);
    return [...new TextEncoder().encode(text)];
  },
  decode(ids) {
    const list = [...ids];
    const bad = list.find((id) => !Number.isInteger(id) || id < 0 || id > BYTES_EOS);
    if (bad !== undefined) throw new ArgumentError(`Ids of bytes are at most ${BYTES_EOS}, got ${bad}`);
    return new TextDecoder().decode(Uint8Array.from(list.filter((id) => id !== BYTES_EOS)));
  },
};

/** Refuses text that UTF-8 cannot hold: an encoder would write U+FFFD in its place. */
function requireWellFormed(text: string): void {
  if (text.isWellFormed()) return;
  throw new ArgumentError("Cannot encode text that holds half of a surrogate pair: it is not valid Unicode");
}
