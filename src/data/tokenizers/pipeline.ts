/**
 * A `tokenizer.json` as Python's `tokenizers` runs it: added tokens are found, the text between them is normalized and cut into
 * pieces, and a model makes ids of each piece.
 *
 * Invariant: ids and texts are the same as in `tokenizers` 0.23.3, or the file is refused by name. `scripts/tokenizers` compares.
 *
 * @module
 */
import { CheckpointError } from "../../errors.ts";
import { type AddedToken, AddedTokenFinder, readAddedToken } from "./added_tokens.ts";
import { readBpe } from "./bpe_model.ts";
import { type Decoder, readDecoder } from "./decoders.ts";
import type { Model } from "./model.ts";
import { type Normalizer, readNormalizer } from "./normalizers.ts";
import type { JsonObject } from "../../json.ts";
import { brief, JsonPart } from "./part.ts";
import { type PreTokenizerPart, readPreTokenizer } from "./pre_tokenizers.ts";
import type { TextPiece } from "./split.ts";
import { readUnigram } from "./unigram_model.ts";
import { readWordLevel, readWordPiece } from "./word_models.ts";

/** Keys of the file: the parts, and what changes no id of a full text. As in `transformers`, no text is cut off or padded. */
const KEYS = [
  "version",
  "truncation",
  "padding",
  "added_tokens",
  "normalizer",
  "pre_tokenizer",
  "post_processor",
  "decoder",
  "model",
];

/** Post-processors only add tokens of templates, which text is encoded without. */
const POST_PROCESSORS = ["TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing", "Sequence"];

/** Makes ids of text, and text of ids. */
export class TokenizerPipeline {
  /** Ids by token, of the model and of added ones. */
  readonly vocab: ReadonlyMap<string, number>;
  /** The added tokens. */
  readonly added: readonly AddedToken[];
  readonly #model: Model;
  readonly #normalize: Normalizer;
  readonly #preTokenizer: PreTokenizerPart | undefined;
  readonly #decoder: Decoder | undefined;
  readonly #verbatim: AddedTokenFinder;
  readonly #normalized: AddedTokenFinder;
  readonly #tokens: ReadonlyMap<number, string>;
  readonly #special: ReadonlySet<string>;

  /**
   * Reads the contents of the file.
   *
   * @param more the `added_tokens_decoder` of `tokenizer_config.json`: of a token that both files name, its options count
   * @throws {CheckpointError} naming the part that is wrong or not supported
   */
  constructor(json: JsonObject, file: string, more?: JsonPart) {
    for (const [key, value] of Object.entries(json)) {
      if (KEYS.includes(key) || value === null) continue;
      throw new CheckpointError(file, `${key}: this key is not supported, got ${brief(value)}`);
    }
    const part = (key: string): JsonPart | undefined =>
      json[key] === undefined || json[key] === null ? undefined : new JsonPart(json[key], file, key);
    const [normalizerPart, preTokenizerPart, decoderPart] = [
      part("normalizer"),
      part("pre_tokenizer"),
      part("decoder"),
    ];
    const normalizer = normalizerPart && readNormalizer(normalizerPart);
    const normalize = normalizer?.normalize ?? ((text) => text);
    this.#normalize = normalize;
    this.#preTokenizer = preTokenizerPart && readPreTokenizer(preTokenizerPart);
    this.#decoder = decoderPart && readDecoder(decoderPart);
    checkPostProcessor(part("post_processor"));
    this.#model = readModel(new JsonPart(json["model"], file, "model"));
    this.added = withDecoder(readAddedTokens(json, file, this.#model), this.#model, more);
    const isMoved = normalizer?.movesStart === true ||
      (normalizer?.divides === true && this.added.some(({ normalized }) => normalized));
    if (preTokenizerPart !== undefined && this.#preTokenizer?.needsFirst === true && isMoved) {
      const why = "Metaspace with prepend_scheme 'first' cannot know the text's start after this normalizer";
      preTokenizerPart.refuse("type", why);
    }
    const added = this.added.map(({ content, id }) => [content, id] as const);
    this.vocab = new Map([...this.#model.vocab, ...added]);
    // As in Python, a token that is found in normalized text is decoded as what it is there.
    const shown = this.added.map(({ content, id, normalized }) =>
      [normalized ? normalize(content) : content, id] as const
    );
    this.#tokens = new Map([...this.#model.vocab, ...shown].map(([token, id]) => [id, token]));
    this.#special = new Set(this.added.filter(({ special }) => special).map(({ content }) => content));
    this.#verbatim = new AddedTokenFinder(this.added.filter(({ normalized }) => !normalized), file);
    this.#normalized = new AddedTokenFinder(this.added.filter(({ normalized }) => normalized), file, normalize);
  }

  /**
   * Ids of a text, without tokens of a template.
   *
   * @throws {ArgumentError} if some of it has no id
   */
  encode(text: string): number[] {
    const ids: number[] = [];
    for (const section of this.#verbatim.split(text)) {
      if (section.id !== undefined) ids.push(section.id);
      else this.#encodeBetween(text.slice(section.start, section.end), section.start === 0, ids);
    }
    return ids;
  }

  #encodeBetween(text: string, isFirst: boolean, ids: number[]): void {
    const normal = this.#normalize(text);
    for (const { start, end, id } of this.#normalized.split(normal)) {
      if (id !== undefined) ids.push(id);
      else this.#encodePieces({ text: normal.slice(start, end), isFirst: isFirst && start === 0 }, ids);
    }
  }

  #encodePieces(whole: TextPiece, ids: number[]): void {
    const pieces = this.#preTokenizer === undefined ? [whole] : this.#preTokenizer.cut([whole]);
    for (const { text } of pieces) if (text !== "") this.#model.tokenize(text, ids);
  }

  /** The token of an id. */
  tokenOf(id: number): string | undefined {
    return this.#tokens.get(id);
  }

  /** Text of ids; those that have no token are left out, and special ones if asked. */
  decode(ids: Iterable<number>, skipSpecial: boolean): string {
    const tokens: string[] = [];
    for (const id of ids) {
      const token = this.#tokens.get(id);
      if (token !== undefined && !(skipSpecial && this.#special.has(token))) tokens.push(token);
    }
    return this.#decoder === undefined ? tokens.join(" ") : this.#decoder(tokens).join("");
  }
}

const MODELS = { BPE: readBpe, Unigram: readUnigram, WordLevel: readWordLevel, WordPiece: readWordPiece };

function readModel(part: JsonPart): Model {
  const names = Object.keys(MODELS);
  const read = Object.entries(MODELS).find(([name]) => name === (part.type ?? typeOf(part)))?.[1];
  const model = read === undefined ? part.refuseType(names) : read(part);
  part.close();
  const seen = new Set<number>();
  for (const [token, id] of model.vocab) {
    if (seen.has(id)) part.fail("vocab", "an id of its own for each token", { [token]: id });
    seen.add(id);
  }
  return model;
}

/** The model of a file that was written before types were, as GPT-2's. */
function typeOf(part: JsonPart): string | undefined {
  if (part.raw("merges") !== null) return "BPE";
  if (Array.isArray(part.raw("vocab"))) return "Unigram";
  if (part.raw("continuing_subword_prefix") !== null) return "WordPiece";
  return part.raw("unk_token") === null ? undefined : "WordLevel";
}

function checkPostProcessor(part: JsonPart | undefined): void {
  if (part === undefined) return;
  if (!POST_PROCESSORS.some((name) => name === part.type)) part.refuseType(POST_PROCESSORS);
  if (part.type === "Sequence") { for (const step of part.parts("processors")) checkPostProcessor(step); }
}

/** Reads the file's added tokens. Python gives ids by its own rule, so the ids in the file must equal them. */
function readAddedTokens(json: JsonObject, file: string, model: Model): readonly AddedToken[] {
  if (json["added_tokens"] === undefined || json["added_tokens"] === null) return [];
  const tokens: AddedToken[] = [];
  const contents = new Set<string>();
  let newest = -1;
  for (const part of new JsonPart({ added_tokens: json["added_tokens"] }, file, "").parts("added_tokens")) {
    const token = readAddedToken(part);
    const id = model.vocab.get(token.content) ?? Math.max(model.size, newest + 1);
    if (token.content === "") part.fail("content", "a text");
    if (contents.has(token.content)) part.fail("content", "a token that was not added before");
    if (id !== token.id) part.fail("id", `${id}, as Python's tokenizers gives it`, token.id);
    newest = Math.max(newest, id);
    contents.add(token.content);
    tokens.push(token);
  }
  return tokens;
}

/** Adds the tokens of an `added_tokens_decoder`, whose keys are ids, as `transformers` does. */
function withDecoder(own: readonly AddedToken[], model: Model, decoder: JsonPart | undefined): readonly AddedToken[] {
  const merged = new Map(own.map((token) => [token.content, token]));
  let newest = own.reduce((most, { id }) => Math.max(most, id), -1);
  for (const [key, part] of decoder?.entries() ?? []) {
    const token = readAddedToken(part, Number(key));
    const known = merged.get(token.content)?.id ?? model.vocab.get(token.content);
    const id = known ?? Math.max(model.size, newest + 1);
    if (token.content === "") part.fail("content", "a text");
    if (id !== token.id) part.fail("content", `the token of id ${key}`, `${token.content} of id ${id}`);
    newest = Math.max(newest, id);
    merged.set(token.content, token);
  }
  return [...merged.values()];
}
