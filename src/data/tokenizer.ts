/**
 * Text to token ids and back: by its bytes, which needs no file, or by a Hugging Face `tokenizer.json`. The work is
 * `@huggingface/tokenizers`'; this file reads its two files, finds the end-of-text token and fingerprints both.
 *
 * Invariant: text is encoded without template tokens, so packed documents hold only the tokens that packing adds.
 *
 * @module
 */
import { Tokenizer as HfTokenizer } from "@huggingface/tokenizers";
import { ArgumentError, CheckpointError } from "../errors.ts";
import { sha256 } from "../runtime/checksum.ts";
import { FOREIGN_BYTES, foreignContent } from "../runtime/file_kind.ts";
import { pathKind, readText } from "../runtime/files.ts";

/** Turns text into token ids and back. */
export interface Tokenizer {
  /** The `tokenizer.json` it was read from. */
  readonly path: string;
  /** All files it was read from, to be kept beside a model. */
  readonly files: readonly string[];
  /** One more than the largest id. */
  readonly vocabSize: number;
  /** Id of the end-of-text token; `undefined` if `tokenizer_config.json` names none. */
  readonly eosId: number | undefined;
  /** Changes when an encoding may change: SHA-256 of its files, hexadecimal. */
  readonly fingerprint: string;
  /**
   * Ids of a text, without any token that a template would add. A special token spelled out in the text counts as one.
   * As in Python, a tokenizer that lacks both a character and an unknown token leaves the character out.
   *
   * @throws {ArgumentError} if a token has no id
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

/**
 * Reads a tokenizer.
 *
 * @param path a `tokenizer.json`, or a directory that has one; `tokenizer_config.json` beside it is read if it is there
 * @throws {FileError} if there is none
 * @throws {CheckpointError} if a file is not what its name says, or needs what `@huggingface/tokenizers` does not have
 * @example
 * ```ts
 * import { loadTokenizer } from "fullyshard/data";
 * const tokenizer = await loadTokenizer("examples/data");
 * if (tokenizer.decode(tokenizer.encode("interface A {}")) !== "interface A {}") throw new Error("unequal");
 * ```
 */
export async function loadTokenizer(path: string): Promise<Tokenizer> {
  const file = pathKind(path) === "directory" ? `${path}/tokenizer.json` : path;
  const configFile = file.replace(/[^/]*$/, "tokenizer_config.json");
  const text = await readText(file);
  const configText = pathKind(configFile) === "file" ? await readText(configFile) : "{}";
  const json = parseObject(text, file);
  // The package would clean up blanks before marks by default, which changes text; Python's does so only if told to.
  const config = { clean_up_tokenization_spaces: false, ...parseObject(configText, configFile) };
  let inner: HfTokenizer;
  try {
    inner = new HfTokenizer(json, config);
  } catch (cause) {
    const detail = cause instanceof Error ? cause.message : String(cause);
    throw new CheckpointError(file, `Expected a tokenizer that can be built: ${detail}`, undefined, { cause });
  }
  const vocab = inner.get_vocab(true);
  let vocabSize = 0;
  for (const id of vocab.values()) vocabSize = Math.max(vocabSize, id + 1);
  const eos = contentOf(config, "eos_token", configFile);
  const eosId = eos === undefined ? undefined : vocab.get(eos);
  if (eos !== undefined && eosId === undefined) {
    throw new CheckpointError(configFile, `eos_token must be in the vocabulary of ${file}, got ${JSON.stringify(eos)}`);
  }
  return {
    path: file,
    files: pathKind(configFile) === "file" ? [file, configFile] : [file],
    vocabSize,
    eosId,
    fingerprint: sha256([text, "\0", configText]),
    encode(text): number[] {
      const { ids, tokens } = inner.encode(text, { add_special_tokens: false });
      // Typed as numbers, but the package leaves a hole where the unknown token is not in the vocabulary.
      const hole = ids.findIndex((id) => !Number.isInteger(id));
      if (hole < 0) return ids;
      throw new ArgumentError(`${file} has no id for its token ${JSON.stringify(tokens[hole])}`);
    },
    decode(ids, { skipSpecial = false } = {}): string {
      const list = [...ids];
      const bad = list.find((id) => !Number.isInteger(id) || id < 0 || id >= vocabSize);
      if (bad !== undefined) throw new ArgumentError(`Ids of ${file} are below ${vocabSize}, got ${bad}`);
      // The package refuses to decode nothing.
      return list.length === 0 ? "" : inner.decode(list, { skip_special_tokens: skipSpecial });
    },
  };
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
  encode: (text) => [...new TextEncoder().encode(text)],
  decode(ids) {
    const list = [...ids];
    const bad = list.find((id) => !Number.isInteger(id) || id < 0 || id > BYTES_EOS);
    if (bad !== undefined) throw new ArgumentError(`Ids of bytes are at most ${BYTES_EOS}, got ${bad}`);
    return new TextDecoder().decode(Uint8Array.from(list.filter((id) => id !== BYTES_EOS)));
  },
};

function parseObject(text: string, file: string): Readonly<Record<string, unknown>> {
  const foreign = foreignContent(new TextEncoder().encode(text.slice(0, FOREIGN_BYTES)));
  if (foreign !== undefined) throw new CheckpointError(file, `Expected JSON, but the file is ${foreign}`);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    const detail = cause instanceof Error ? cause.message : String(cause);
    throw new CheckpointError(file, `Expected JSON: ${detail}`, undefined, { cause });
  }
  if (!isObject(value)) {
    throw new CheckpointError(file, `Expected a JSON object, got ${JSON.stringify(value).slice(0, 60)}`);
  }
  return value;
}

/** A special token's text: a string, or an object that holds it. */
function contentOf(config: Readonly<Record<string, unknown>>, key: string, file: string): string | undefined {
  const value = config[key];
  if (value === undefined || value === null) return undefined;
  const content = isObject(value) ? value["content"] : value;
  if (typeof content !== "string") {
    throw new CheckpointError(file, `${key} must be a string or have one as content, got ${JSON.stringify(value)}`);
  }
  return content;
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
