/**
 * Text and chats as the batches of a run: found, tokenized, and divided among the ranks.
 *
 * @module
 */
import type { LossPart } from "../data/chat/encode_row.ts";
import { loadChatTemplates } from "../data/chat/load_template.ts";
import { openText, type TextSource } from "../data/documents.ts";
import { DataLoader, type LoaderOptions } from "../data/loader.ts";
import type { Batch } from "../data/micro_batch.ts";
import { describeSkipped } from "../data/find_files.ts";
import type { TokenStream } from "../data/packing.ts";
import { openRows } from "../data/rows/open_rows.ts";
import type { Packing, Rows } from "../data/samples/rows.ts";
import type { SampleSummary } from "../data/samples/sample_file.ts";
import { IGNORED, type SampleStream } from "../data/samples/sample.ts";
import { BYTE_TOKENIZER, loadTokenizer, type Tokenizer } from "../data/tokenizer.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { filePath } from "../runtime/files.ts";
import { at } from "../at.ts";
import { ConfigError, type ConfigProblem, InternalError, UnsupportedError } from "../errors.ts";
import { scope } from "../tensor/scope.ts";
import { requirePositions, requireVocabulary } from "./checks.ts";
import { countOf } from "../words.ts";
import {
  type DataPreparation,
  describeSamples,
  lossesOf,
  namesOf,
  rowPreparation,
  textPreparation,
} from "./data_preparation.ts";
import type { Run } from "./run.ts";

/** Options of {@link textData}. */
export interface TextDataOptions {
  /** Tokens of a sample. */
  readonly sequenceLength: number;
  /** Samples of a step, over all ranks and micro-batches. */
  readonly batch: number;
  /** Number of micro-batches into which each rank divides its samples of a step. @default 1 */
  readonly microBatches?: number;
  /** A `tokenizer.json` or its folder. @default the model's folder, or bytes for a model from scratch */
  readonly tokenizer?: string | Tokenizer | undefined;
  /** The token that ends documents, for a tokenizer of files. @default the one that the files name */
  readonly eosToken?: string | undefined;
  /**
   * The way in which documents become samples, by TRL's names:
   * - `wrapped`: one stream that is cut anywhere, whose tokens see the documents before their own in the sample;
   * - `bfd`: several documents in a sample, which do not see each other; long documents are cut off;
   * - `bfd-split`: the same, but long documents are divided over several samples;
   * - `none`: one document in a sample, cut off.
   *
   * Chats and prompts are never cut into a stream: `wrapped` counts as `none` for them. @default wrapped
   */
  readonly packing?: Packing;
  /** Key of a .jsonl line that holds its text. @default text */
  readonly textField?: string;
  /** Seed of the order. @default 0 */
  readonly seed?: number;
  /** Folder that keeps packed tokens for later runs. @default none: each rank keeps the tokens in memory */
  readonly cache?: string;
  /** Name of the text in errors. @default data */
  readonly name?: string;
  /** Called before text is tokenized into the cache. */
  readonly onTokenize?: (source: Pick<TextSource, "files" | "byteLength">) => void;
  /** A file of Jinja that makes text of chats. @default that of the tokenizer's folder */
  readonly chatTemplate?: string | undefined;
  /**
   * The tokens of chats and prompts that the loss is on. @default the assistant's turns of a chat, and the completion of a row
   * with prompt and completion
   */
  readonly lossOn?: LossPart | undefined;
  /** Leaves out rows of chats and prompts that do not fit, and counts them in the log. @default the first such row ends the run */
  readonly skipBadRows?: boolean;
  /** Tokens that rows of chats and prompts are padded to. @default the longest of a micro-batch */
  readonly padTo?: number | undefined;
}

/** Largest number of tokens for the beginning of a text. */
const BEGINNING_TOKENS = 16;

/** The further members of a {@link TextData} of chats or prompts. */
interface RowParts {
  readonly summary?: SampleSummary | undefined;
  readonly chatTemplate?: string | undefined;
}

/** Batches, and the tokenizer that made them. */
export class TextData extends DataLoader implements Disposable {
  /** The tokenizer of the tokens. */
  readonly tokenizer: Tokenizer;
  /** The file of Jinja that was named to make text of chats. */
  readonly chatTemplate: string | undefined;
  readonly #tokens: TokenStream | SampleStream;
  readonly #summary: SampleSummary | undefined;

  /** Use {@link textData}. */
  constructor(tokenizer: Tokenizer, options: LoaderOptions, rows: RowParts = {}) {
    super(options);
    const { summary, chatTemplate } = rows;
    this.chatTemplate = chatTemplate;
    this.#summary = summary;
    this.tokenizer = tokenizer;
    this.#tokens = options.tokens;
  }

  /** The number of samples and of their tokens, and of rows the number of tokens that are trained on. */
  get description(): string {
    const { sequenceLength } = this.state();
    const { rows } = this;
    const packed = this.state().packing === "none" ? undefined : rows;
    const padding = packed === undefined ? "" : `${(100 * packed.padding).toFixed(1)} % are padding`;
    if (this.#summary !== undefined) {
      const samples = describeSamples(this.#summary, sequenceLength);
      return packed === undefined ? samples : `${samples}; in ${countOf(this.numSamples, "row")}, of which ${padding}`;
    }
    const most = rows !== undefined && packed === undefined ? "at most " : "";
    const samples = `${countOf(this.numSamples, "sample")} of ${most}${countOf(sequenceLength, "token")}`;
    return packed === undefined ? samples : `${samples}, of which ${padding}`;
  }

  /** Yields `steps` steps for `for await`. The loop's body is a scope: tensors made in it are freed at its end. */
  override async *take(steps: number): AsyncGenerator<Batch> {
    for await (const batch of super.take(steps)) {
      using _frame = scope();
      yield batch;
    }
  }

  /**
   * The first words of the text, at most `most` tokens: the prompt of a sample. Empty if the first document is. Of
   * chats, the first one up to the tokens that are trained on.
   */
  async beginning(most: number = BEGINNING_TOKENS): Promise<string> {
    if ("lengthOf" in this.#tokens) {
      const { ids, labels } = await this.#tokens.read(0);
      const first = labels.findIndex((label) => label !== IGNORED);
      return this.tokenizer.decode(
        ids.subarray(0, first > 0 && first <= most ? first : Math.min(most, BEGINNING_TOKENS)),
      );
    }
    const ids = new Int32Array(Math.min(most, BEGINNING_TOKENS, this.#tokens.length));
    await this.#tokens.read(0, ids);
    const end = ids.indexOf(this.tokenizer.eosId ?? -1);
    const text = this.tokenizer.decode(end < 0 ? ids : ids.subarray(0, end)).replace(/\ufffd+$/, "");
    // A word that the limit cut would be continued wrongly.
    return end < 0 ? text.replace(/(?<=\s)\S+$/, "") : text;
  }

  /** Yields every sample once; the loop's body is a scope, as in {@link take}. */
  override async *[Symbol.asyncIterator](): AsyncGenerator<Batch> {
    for await (const batch of super[Symbol.asyncIterator]()) {
      using _frame = scope();
      yield batch;
    }
  }

  /** Closes the file of tokens. */
  [Symbol.dispose](): void {
    this.#tokens.close();
  }
}

interface OwnText {
  readonly source: DataPreparation;
  readonly tokenizer: Tokenizer;
  /** Fingerprint of the text, on the ranks that have read it. */
  readonly text: string | undefined;
}

/** Facts of the text that ranks compare. */
interface SaidText {
  readonly numFiles: number;
  readonly byteLength: number;
  readonly tokenizer: string;
  readonly rules: string;
  readonly text: string | null;
}

/**
 * Refuses ranks with different text, tokenizers or chat templates, as hosts may have different copies.
 *
 * @returns the text's fingerprint
 */
function agreedText(group: Run["group"], { source, tokenizer, text }: OwnText, name: string): string {
  const { files: { length: numFiles }, byteLength, rules } = source;
  const own: SaidText = { numFiles, byteLength, tokenizer: tokenizer.fingerprint, rules, text: text ?? null };
  const all = group.exchangeText(JSON.stringify(own), "texts").map((said): SaidText => JSON.parse(said));
  const first = at(all, 0, "text of rank");
  const problems: ConfigProblem[] = [];
  const sizeOf = (said: SaidText): string => `${countOf(said.numFiles, "file")} of ${countOf(said.byteLength, "byte")}`;
  const isOther = (said: SaidText): boolean => {
    return sizeOf(said) !== sizeOf(first) || (said.text !== null && said.text !== first.text);
  };
  const otherText = all.findIndex(isOther);
  const otherTokenizer = all.findIndex((said) => said.tokenizer !== first.tokenizer);
  const otherRules = all.findIndex((said) => said.rules !== first.rules);
  const rankOf = (index: number): number => group.worldRanks[index] ?? index;
  if (otherText >= 0) {
    const expected = `the text of rank 0 on all ranks: ${sizeOf(first)}`;
    const got = `${sizeOf(at(all, otherText, "text of rank"))} with other contents or names on rank ${
      rankOf(otherText)
    }`;
    problems.push({ path: name, expected, got: `${got}: copy the files of rank 0's host to all hosts` });
  }
  if (otherTokenizer >= 0) {
    const got = `another one on rank ${rankOf(otherTokenizer)}`;
    problems.push({ path: "tokenizer", expected: "the tokenizer of rank 0 on all ranks", got });
  } else if (otherRules >= 0 && otherText < 0) {
    const got = `another one on rank ${rankOf(otherRules)}: copy the file of rank 0's host to all hosts`;
    problems.push({ path: "chatTemplate", expected: "the chat template of rank 0 on all ranks", got });
  }
  if (problems.length > 0) throw new ConfigError(problems);
  if (first.text === null) throw new InternalError("rank 0 has not read the text");
  return first.text;
}

/** Refuses less text than one sample of a stream, of which the last token is only predicted. */
function requireSample(
  tokens: TokenStream | SampleStream,
  source: DataPreparation,
  sequenceLength: number,
  name: string,
): void {
  if ("lengthOf" in tokens || tokens.length > sequenceLength) return;
  tokens.close();
  const expected = `at least ${sequenceLength + 1} tokens, which one sample of sequenceLength ${sequenceLength} takes`;
  const got = `${countOf(tokens.length, "token")} in ${namesOf(source)}: use more text, or a shorter sequenceLength`;
  throw new ConfigError([{ path: name, expected, got }]);
}

/** The data of a run, by what its files hold. */
async function prepare(
  patterns: readonly string[],
  tokenizer: Tokenizer,
  { sequenceLength, textField = "text", name = "data", lossOn, skipBadRows = false, chatTemplate }: TextDataOptions,
): Promise<DataPreparation> {
  const rows = await openRows(patterns, { textField, name });
  if (rows !== undefined) {
    const templates = await loadChatTemplates(tokenizer.path, chatTemplate);
    const options = { tokenizer, templates, lossOn, maxLength: sequenceLength, name, textField, skipBadRows };
    return rowPreparation(rows, options);
  }
  const only = { chatTemplate, lossOn: lossOn === "all" ? undefined : lossOn };
  const problems = Object.entries(only).filter(([, value]) => value !== undefined).map(([path, value]) => ({
    ...{ path, expected: "chats, or prompts with completions, to train on", got: `'${value}' for text: leave it out` },
  }));
  if (problems.length > 0) throw new ConfigError(problems);
  return textPreparation(openText(patterns, { field: textField, name }), tokenizer, name);
}

/** The tokens that packing left out of documents, in words; undefined where there are none. */
function describeCut({ cutTokens, cutSamples }: Rows, sequenceLength: number, packing: Packing): string | undefined {
  if (cutTokens === 0) return undefined;
  const remedy = packing === "bfd" ? "'bfd-split' would keep them" : "'bfd-split' or 'wrapped' would keep them";
  return `Packing '${packing}' leaves out ${countOf(cutTokens, "token")}, of ${
    countOf(cutSamples, "document")
  } longer than ` +
    `sequenceLength ${sequenceLength}: a longer one, or the packing ${remedy}`;
}

/**
 * Opens text, or chats and prompts with completions, as batches for a model. Every rank must call it.
 *
 * @param inputs files, folders or patterns; `.jsonl` files hold one object a line, any other file is one document. Of folders,
 *   what is hidden, in `node_modules` or no UTF-8 text is skipped, and the group's report says so. Where the rows of some file are
 *   chats or prompts (`.jsonl`, `.json`, `.csv`, also `.gz` of these), each row is a sample of its own: see `docs/chats.md`
 * @throws {ConfigError} naming every input that matches no file, text that cannot be read, or a tokenizer that makes ids which
 *   the model does not have
 * @throws {ConfigError} naming file and line of a row that does not fit or has no token to train on, unless it is to be skipped
 * @throws {ConfigError} if there is less text than one sample, naming the files and how many tokens they have
 * @throws {ArgumentError} if the batch cannot be divided among the ranks that read other samples
 * @throws {UnsupportedError} if an axis of the run is to divide the positions of samples
 * @example
 * ```ts
 * import { launch, openModel, textData } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 257, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * const data = await textData(run, model, "README.md", { sequenceLength: 32, batch: 4 });
 * for await (const { microBatches } of data.take(2)) if (microBatches.length !== 1) throw new Error("one of 4 × 32");
 * ```
 */
export async function textData(
  { group, localWorldSize = group.size, data = group, samples = data }:
    & Pick<Run, "group">
    & Partial<Pick<Run, "localWorldSize" | "data" | "samples">>,
  model: CausalLm,
  inputs: string | URL | readonly (string | URL)[],
  options: TextDataOptions,
): Promise<TextData> {
  const { sequenceLength, batch, microBatches = 1, seed = 0, cache, eosToken, name = "data", padTo } = options;
  if (samples.size !== data.size) {
    throw new UnsupportedError(
      `Cannot divide samples among ${data.size} ranks of which ${samples.size} read other samples: no loader divides the positions of ` +
        "a sample over an axis context (cp) yet; give that axis one rank",
    );
  }
  const patterns = (typeof inputs === "string" || inputs instanceof URL ? [inputs] : inputs).map(filePath);
  const { tokenizer, source } = await group.together("open the text", async () => {
    const named = options.tokenizer ?? model.files?.folder ?? BYTE_TOKENIZER;
    const tokenizer = typeof named === "string" ? await loadTokenizer(named, { eosToken }) : named;
    if (eosToken !== undefined && typeof named !== "string") {
      const got = `${JSON.stringify(eosToken)} for '${named.path}', which has its own`;
      throw new ConfigError([{ path: "eosToken", expected: "a tokenizer that is read from files", got }]);
    }
    requireVocabulary(tokenizer, model);
    requirePositions(sequenceLength, model);
    return { tokenizer, source: await prepare(patterns, tokenizer, options) };
  });
  const isLoaded = tokenizer !== options.tokenizer;
  if (isLoaded && tokenizer.eosNote !== undefined && group.rank === 0) group.report(tokenizer.eosNote);
  const skipped = source.skipped === undefined ? undefined : describeSkipped(source.skipped);
  if (skipped !== undefined && group.rank === 0) group.report(`Skipped ${skipped} in ${patterns.join(", ")}`);
  // One rank of each host reads the text for its fingerprint, and gives it to the others.
  const isFirst = group.rank % localWorldSize === 0;
  const own = await group.together("read the text", () => {
    if (!isFirst) return undefined;
    return cache === undefined ? { textFingerprint: source.fingerprint() } : source.cache(cache);
  });
  const text = agreedText(group, { source, tokenizer, text: own?.textFingerprint }, name);
  const kept = cache === undefined ? undefined : own !== undefined && "build" in own ? own : source.cache(cache, text);
  // Rank 0 tokenizes first: hosts that share the folder then find its file.
  for (let first = 0; first < group.size && kept !== undefined; first += localWorldSize) {
    await group.together("tokenize the text", async () => {
      if (group.rank !== first || kept.exists()) return;
      await source.requireSome();
      options.onTokenize?.(source);
      await kept.build();
    });
  }
  const { tokens, summary } = await group.together("open the tokens", async () => {
    if (kept !== undefined) return kept.open();
    await source.requireSome();
    return await source.inMemory(text);
  });
  const { packing: asked = "wrapped" } = options;
  // A sample of rows has labels of its own, so that it is never cut in the middle of a stream.
  const packing = "lengthOf" in tokens && asked === "wrapped" ? "none" : asked;
  if (packing === "wrapped") requireSample(tokens, source, sequenceLength, name);
  const opened = new TextData(tokenizer, {
    ...{ tokens, packing, padTo, sequenceLength, seed, microBatches, globalBatch: batch },
    ...{ rank: samples.rank, worldSize: samples.size },
  }, { summary, chatTemplate: options.chatTemplate });
  const cut = opened.rows && describeCut(opened.rows, sequenceLength, packing);
  if (group.rank === 0) {
    if (summary !== undefined) { for (const line of lossesOf(summary)) group.report(`${name}: ${line}`); }
    if (cut !== undefined) group.report(cut);
  }
  return opened;
}
