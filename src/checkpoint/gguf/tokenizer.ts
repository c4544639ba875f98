/**
 * A tokenizer as GGUF's metadata: byte-level byte pair encoding (`gpt2` there), and SentencePiece's with a fallback to bytes
 * (`llama` there).
 *
 * @module
 */
import { CheckpointError, UnsupportedError } from "../../errors.ts";
import { bool, type GgufValue, string, uint32 } from "./format.ts";
import { preTokenizerName } from "./pre_tokenizers.ts";
import { sentencePieceScores, spacePrefix } from "./sentencepiece.ts";
import { addsOf, specialIds } from "./special_tokens.ts";
import type { TokenizerFiles } from "./tokenizer_files.ts";

/** llama.cpp's kinds of tokens. */
const KIND = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

/** Names of tokens that one line shows. */
const MOST_SHOWN = 4;

/** Facts about the model beside its tokenizer. */
export interface TokenizerContext {
  /** Rows of the embedding. */
  readonly vocabSize: number;
  /** Ids that end what is generated, as the model's folder says; none where it does not. */
  readonly eosIds: readonly number[];
  /** The model's `config.json`. */
  readonly hfConfig: Readonly<Record<string, unknown>>;
  /** llama.cpp's name of the pre-tokenizer. @default the one whose regular expression the tokenizer has */
  readonly pre: string | undefined;
}

/** A tokenizer's keys. */
export interface TokenizerKeys {
  readonly metadata: ReadonlyMap<string, GgufValue>;
  /** Remarks on texts that llama.cpp may cut otherwise. */
  readonly notes: readonly string[];
}

/** The keys of a file without tokenizer, which llama.cpp then feeds with ids alone. */
export function noTokenizer(): TokenizerKeys {
  return { metadata: new Map([["tokenizer.ggml.model", string("none")]]), notes: [] };
}

/**
 * The keys of a tokenizer.
 *
 * @throws {UnsupportedError} for a tokenizer that llama.cpp does not have
 * @throws {CheckpointError} if it does not fit the model
 */
export function tokenizerKeys(files: TokenizerFiles, context: TokenizerContext): TokenizerKeys {
  const isByteLevel = [files.preTokenizer, ...files.preTokenizer?.pretokenizers ?? []].some((one) =>
    one?.type === "ByteLevel"
  );
  if (isByteLevel) return byteLevelKeys(files, context);
  if (files.byteFallback) return sentencePieceKeys(files, context);
  throw new UnsupportedError(
    `Cannot write the tokenizer of '${files.file}' into GGUF: it is neither byte-level nor falls back to bytes, and ` +
      `llama.cpp has none such`,
  );
}

function byteLevelKeys(files: TokenizerFiles, context: TokenizerContext): TokenizerKeys {
  const others = files.normalizers.filter(({ type }) => type !== "NFC");
  if (others.length > 0) {
    throw new UnsupportedError(
      `Cannot write the tokenizer of '${files.file}' into GGUF: llama.cpp does not change texts before they are cut, ` +
        `and this one has the normalizer ${JSON.stringify(others[0])}`,
    );
  }
  const pre = context.pre ??
    preTokenizerName(files.preTokenizer ?? { type: "none" }, files.ignoresMerges, files.file);
  const { tokens, kinds } = tokenTable(files, context, (content) => content);
  const merges = files.merges.map((pair) => pair.map((part) => part.replaceAll(" ", "Ġ")).join(" "));
  return {
    metadata: new Map<string, GgufValue>([
      ["tokenizer.ggml.model", string("gpt2")],
      ["tokenizer.ggml.pre", string(pre)],
      ["tokenizer.ggml.tokens", { type: "strings", value: tokens }],
      ["tokenizer.ggml.token_type", { type: "int32s", value: kinds }],
      ["tokenizer.ggml.merges", { type: "strings", value: merges }],
      ...commonKeys(files, context),
    ]),
    notes: [
      ...files.normalizers.length === 0
        ? []
        : ["the tokenizer normalizes texts to NFC, which llama.cpp does not: give it texts in NFC"],
      ...addedNotes(files),
    ],
  };
}

function sentencePieceKeys(files: TokenizerFiles, context: TokenizerContext): TokenizerKeys {
  if (context.pre !== undefined) {
    throw new UnsupportedError(`--pre is for byte-level tokenizers, and '${files.file}' is none: leave it out`);
  }
  const space = spacePrefix(files);
  const { tokens, kinds } = tokenTable(files, context, (content) => content.replaceAll("▁", " "));
  return {
    metadata: new Map<string, GgufValue>([
      ["tokenizer.ggml.model", string("llama")],
      ["tokenizer.ggml.pre", string("default")],
      ["tokenizer.ggml.tokens", { type: "strings", value: tokens }],
      ["tokenizer.ggml.scores", { type: "float32s", value: sentencePieceScores(files, tokens) }],
      ["tokenizer.ggml.token_type", { type: "int32s", value: kinds }],
      ["tokenizer.ggml.add_space_prefix", bool(space.isAdded)],
      ...commonKeys(files, context),
    ]),
    notes: [...space.notes, ...addedNotes(files)],
  };
}

/** Remarks on properties of added tokens that llama.cpp does not know. */
function addedNotes({ added }: TokenizerFiles): readonly string[] {
  const odd = added.filter((one) => one.lstrip === true || one.rstrip === true || one.single_word === true);
  if (odd.length === 0) return [];
  const more = odd.length > MOST_SHOWN ? ` and ${odd.length - MOST_SHOWN} more` : "";
  const shown = odd.slice(0, MOST_SHOWN).map(({ content }) => `'${content}'`).join(", ");
  return [`llama.cpp does not take blanks around tokens along, nor look for whole words, as these do: ${shown}${more}`];
}

/** Ids of special tokens, what is added to each text, and chat templates. */
function commonKeys(files: TokenizerFiles, context: TokenizerContext): readonly (readonly [string, GgufValue])[] {
  const ids = specialIds(files, context);
  const adds = addsOf(files, ids);
  const others = [...files.chatTemplates.keys()].filter((name) => name !== "default");
  return [
    ...[...ids].map(([name, id]) => [`tokenizer.ggml.${name}_token_id`, uint32(id)] as const),
    ["tokenizer.ggml.add_bos_token", bool(adds.bos)],
    ["tokenizer.ggml.add_eos_token", bool(adds.eos)],
    ...others.length === 0 ? [] : [["tokenizer.chat_templates", { type: "strings", value: others }] as const],
    ...[...files.chatTemplates].map(([name, template]) => {
      return [`tokenizer.chat_template${name === "default" ? "" : `.${name}`}`, string(template)] as const;
    }),
  ];
}

/** Texts and kinds of all ids; those that the tokenizer does not have are unused. */
function tokenTable(
  { file, vocab, added, unkToken, byteFallback }: TokenizerFiles,
  { vocabSize }: TokenizerContext,
  textOf: (content: string) => string,
): { readonly tokens: readonly string[]; readonly kinds: readonly number[] } {
  const tokens = Array.from({ length: vocabSize }, (_, id) => `[PAD${id}]`);
  const kinds = Array.from<number>({ length: vocabSize }).fill(KIND.unused);
  const set = (id: number, text: string, kind: number): void => {
    if (id >= vocabSize) {
      throw new CheckpointError(file, `Token '${text}' has id ${id}, and the model has ${vocabSize}`);
    }
    tokens[id] = text;
    kinds[id] = kind;
  };
  for (const [text, id] of vocab) {
    const isByte = byteFallback && /^<0x[0-9A-F]{2}>$/.test(text);
    set(id, text, isByte ? KIND.byte : text === unkToken ? KIND.unknown : KIND.normal);
  }
  for (const { id, content, special } of added) {
    if (content === unkToken) continue;
    set(id, special ? content : textOf(content), special ? KIND.control : KIND.userDefined);
  }
  const seen = new Map<string, number>();
  for (const [id, text] of tokens.entries()) {
    const other = seen.get(text);
    if (other !== undefined) {
      throw new CheckpointError(file, `Tokens ${other} and ${id} are both '${text}': llama.cpp takes each text once`);
    }
    seen.set(text, id);
  }
  return { tokens, kinds };
}
