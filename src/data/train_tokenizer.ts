/**
 * A tokenizer of one's own: byte-level BPE learned from text, as the two files that this library and Hugging Face's read.
 *
 * @module
 */
import { makeDirectory, pathExists, removeQuietly, replaceFile } from "../runtime/files.ts";
import { ArgumentError } from "../errors.ts";
import { learnBpe } from "./bpe.ts";
import type { TextSource } from "./documents.ts";

/** The token between documents. */
const END_OF_TEXT = "<|endoftext|>";

/** The least that a vocabulary holds: every byte, and the end of a text. */
export const MIN_VOCAB_SIZE = 257;

/** Llama 3's words: contractions, letters with one mark before, at most three digits, marks, line ends, blanks. */
const WORDS = String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}` +
  String.raw`| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;

/** A tokenizer that was learned. */
export interface TrainedTokenizer {
  /** Entries of its vocabulary: fewer than asked for where the text has no more pairs that occur twice. */
  readonly vocabSize: number;
  /** Tokens that it makes of the text it was learned from. */
  readonly tokens: number;
  /**
   * Writes `tokenizer_config.json` and `tokenizer.json` into a folder, which is made. Where a write fails, no new folder is left.
   *
   * @throws {FileError} if they cannot be written
   */
  save(folder: string): void;
}

/**
 * Learns a byte-level BPE tokenizer: every text can be encoded, and no token reaches over the end of a word. The same
 * text gives the same tokenizer on every runtime, equal to the tokenizer of Python's `tokenizers`.
 *
 * @param source the text, which is read once
 * @param options `vocabSize`: entries of the vocabulary, at least 257; one of them, id 0, is the end of a text
 * @throws {ArgumentError} if the vocabulary is too small
 * @throws {ConfigError} naming file and line of text that cannot be read
 * @example
 * ```ts
 * import { loadTokenizer, openText, trainTokenizer } from "fullyshard/data";
 * const trained = await trainTokenizer(openText(["README.md"]), { vocabSize: 512 });
 * const folder = await Deno.makeTempDir();
 * trained.save(folder);
 * const tokenizer = await loadTokenizer(folder);
 * if (tokenizer.decode(tokenizer.encode("fully sharded")) !== "fully sharded") throw new Error("unequal");
 * ```
 */
export async function trainTokenizer(
  source: TextSource,
  { vocabSize }: { readonly vocabSize: number },
): Promise<TrainedTokenizer> {
  if (!Number.isInteger(vocabSize) || vocabSize < MIN_VOCAB_SIZE) {
    throw new ArgumentError(`A vocabulary has ${MIN_VOCAB_SIZE} entries or more, got ${vocabSize}`);
  }
  const words = new Map<string, number>();
  // Unicode's White_Space, as in Python: JavaScript's \s lacks U+0085, and has U+FEFF besides.
  const pattern = new RegExp(WORDS.replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}"), "gu");
  for await (const { text } of source.documents()) {
    for (const [word] of text.matchAll(pattern)) words.set(word, (words.get(word) ?? 0) + 1);
  }
  const { tokens, merges, length } = learnBpe(words, [END_OF_TEXT], vocabSize);
  return {
    vocabSize: tokens.length,
    tokens: length,
    save(folder): void {
      const isNew = !pathExists(folder);
      makeDirectory(folder);
      try {
        // The file that a folder of a tokenizer is known by comes last.
        replaceFile(`${folder}/tokenizer_config.json`, `${JSON.stringify(TOKENIZER_CONFIG)}\n`);
        replaceFile(`${folder}/tokenizer.json`, `${JSON.stringify(tokenizerJson(tokens, merges))}\n`);
      } catch (error) {
        if (isNew) removeQuietly(folder);
        throw error;
      }
    },
  };
}

const TOKENIZER_CONFIG = {
  tokenizer_class: "PreTrainedTokenizerFast",
  bos_token: END_OF_TEXT,
  eos_token: END_OF_TEXT,
  clean_up_tokenization_spaces: false,
};

/** The content of `tokenizer.json`, in the form that Python's `tokenizers` writes. */
function tokenizerJson(tokens: readonly string[], merges: readonly (readonly [string, string])[]): object {
  const text = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: [{ id: 0, content: END_OF_TEXT, ...text }],
    normalizer: null,
    pre_tokenizer: {
      type: "Sequence",
      pretokenizers: [
        { type: "Split", pattern: { Regex: WORDS }, behavior: "Isolated", invert: false },
        { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
      ],
    },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges,
    },
  };
}
