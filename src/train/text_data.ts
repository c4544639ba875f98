/**
 * Text and chats as the batches of a run: found, tokenized, and divided among the ranks.
 *
 * @module
 */
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import type { LossPart } from "../data/chat/encode_row.ts";
import type { TextSource } from "../data/documents.ts";
import { DataLoader, type LoaderOptions, type LoaderState } from "../data/loader.ts";
import type { Batch } from "../data/micro_batch.ts";
import { weightedInputs } from "../data/mixture.ts";
import type { TokenStream } from "../data/token_stream.ts";
import type { Packing, Rows } from "../data/samples/rows.ts";
import type { SampleSummary } from "../data/samples/sample_file.ts";
import { IGNORED, type SampleStream } from "../data/samples/sample.ts";
import { furthestPlaces, StreamedRows, type StreamPlace } from "../data/stream/streamed_rows.ts";
import { BYTE_TOKENIZER, loadTokenizer, type Tokenizer } from "../data/tokenizer.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { filePath } from "../runtime/files.ts";
import { at } from "../at.ts";
import { ConfigError } from "../errors.ts";
import { scope } from "../tensor/scope.ts";
import { requirePositions, requireVocabulary } from "./checks.ts";
import { countOf } from "../words.ts";
import type { OpenSource, PreparedSource } from "./data_source.ts";
import { describeSamples, describeStream, lossesOf, namesOf, type SampleUnit } from "./data_words.ts";
import { requireOpenedModel } from "./opened_model.ts";
import { requireRun } from "./required_run.ts";
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
   * Chats and prompts are never cut into a stream: `wrapped` is refused for them. @default wrapped; of chats and prompts none
   */
  readonly packing?: Packing | undefined;
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
  /** A file with the Jinja template of chats. @default the template in the tokenizer's folder */
  readonly chatTemplate?: string | undefined;
  /**
   * The tokens of chats and prompts that the loss is on. @default the assistant's turns of a chat, and the completion of a row
   * with prompt and completion
   */
  readonly lossOn?: LossPart | undefined;
  /** Leaves out rows of chats and prompts that do not fit, and counts them in the log. @default the first such row ends the run */
  readonly skipBadRows?: boolean;
  /**
   * Ignores `chatTemplate` and `lossOn` if the data turns out to be text: they are for other data of the run.
   *
   * @default text is refused with them
   */
  readonly toleratesText?: boolean;
  /**
   * Tokenizes windows of the files while they are trained on, in place of all of them before the first step. Rows are shuffled within
   * windows, and windows where files can be read from any place. @default of more than 1 GiB of data
   */
  readonly streaming?: boolean | undefined;
  /** Tokens that rows of chats and prompts are padded to. @default the longest of a micro-batch */
  readonly padTo?: number | undefined;
  /**
   * Reads each row as a preference: `prompt`, `chosen` and `rejected`. A sample is a pair then, and a micro-batch has two rows for
   * each: see `MicroBatch.pairs`. @default false
   */
  readonly isPreference?: boolean | undefined;
  /**
   * With `isPreference`: rows are `prompt`, `completion`, `label`. Each row becomes two: its own completion, then the completion of the
   * previous row in a block of `batch` rows, for KTO's KL term. @default false
   */
  readonly hasLabels?: boolean | undefined;
  /**
   * With `isPreference`: every sample begins with the tokenizer's begin-of-text token, if it has one, and ends with its end-of-text token,
   * as TRL's `ORPOTrainer` makes them. @default texts end with the end-of-text token, and chats as their template ends them
   */
  readonly hasTextEnds?: boolean | undefined;
}

/** Names of the options of {@link textData}. */
const KNOWN_OPTIONS: KnownKeys<TextDataOptions> = {
  ...{ sequenceLength: true, batch: true, microBatches: true, tokenizer: true, eosToken: true, packing: true },
  ...{ textField: true, seed: true, cache: true, name: true, onTokenize: true, chatTemplate: true, lossOn: true },
  ...{
    streaming: true,
    skipBadRows: true,
    toleratesText: true,
    padTo: true,
    isPreference: true,
    hasTextEnds: true,
    hasLabels: true,
  },
};

/** Largest number of tokens for the beginning of a text. */
const BEGINNING_TOKENS = 16;

/** The further members of a {@link TextData} of chats or prompts. */
interface RowParts {
  readonly summaries?: readonly SampleSummary[] | undefined;
  /** The sources of a mixture with their shares, in words. */
  readonly shares?: string | undefined;
  readonly chatTemplate?: string | undefined;
  readonly isPairs?: boolean | undefined;
  readonly hasLabels?: boolean | undefined;
  /** True if samples are rows. @default there are summaries of them */
  readonly isRows?: boolean | undefined;
  /** The ranks that know places of a stream. */
  readonly group?: Run["group"] | undefined;
}

/** Batches, and the tokenizer that made them. */
export class TextData extends DataLoader implements Disposable {
  /** The tokenizer of the tokens. */
  readonly tokenizer: Tokenizer;
  /** The file with the Jinja template of chats, if one was named. */
  readonly chatTemplate: string | undefined;
  /** True if each sample is a row of chats or prompts. */
  readonly isRows: boolean;
  readonly #sequenceLength: number;
  readonly #tokens: readonly (TokenStream | SampleStream)[];
  readonly #stream: StreamedRows | undefined;
  readonly #group: Run["group"] | undefined;
  readonly #summaries: readonly SampleSummary[];
  readonly #shares: string | undefined;
  readonly #unit: SampleUnit;

  /** Use {@link textData}. */
  constructor(tokenizer: Tokenizer, options: LoaderOptions, rows: RowParts = {}) {
    super(options);
    const {
      summaries = [],
      chatTemplate,
      shares,
      isPairs = false,
      hasLabels = false,
      isRows = summaries.length > 0,
      group,
    } = rows;
    this.isRows = isRows;
    this.#group = group;
    this.#unit = hasLabels ? "answer" : isPairs ? "pair" : "sample";
    this.#sequenceLength = options.sequenceLength;
    this.chatTemplate = chatTemplate;
    this.#summaries = summaries;
    this.#shares = shares;
    this.tokenizer = tokenizer;
    const { tokens } = options;
    this.#stream = tokens instanceof StreamedRows ? tokens : undefined;
    if (tokens instanceof StreamedRows) this.#tokens = [];
    else this.#tokens = "parts" in tokens ? tokens.parts.map((part) => part.tokens) : [tokens];
  }

  /** The number of samples and of their tokens, and of rows the number of tokens that are trained on. */
  get description(): string {
    const sequenceLength = this.#sequenceLength;
    if (this.#shares !== undefined) return this.#shares;
    if (this.#stream !== undefined) return describeStream(this.#stream, sequenceLength);
    const { rows, numSamples = 0 } = this;
    const [summary] = this.#summaries;
    const packed = this.packing === "none" ? undefined : rows;
    const padding = packed === undefined ? "" : `${(100 * packed.padding).toFixed(1)} % are padding`;
    if (summary !== undefined) {
      const samples = describeSamples(summary, sequenceLength, this.#unit);
      return packed === undefined ? samples : `${samples}; in ${countOf(numSamples, "row")}, of which ${padding}`;
    }
    const most = rows !== undefined && packed === undefined ? "at most " : "";
    const samples = `${countOf(numSamples, "sample")} of ${most}${countOf(sequenceLength, "token")}`;
    return packed === undefined ? samples : `${samples}, of which ${padding}`;
  }

  /** The state to resume from. Of data that is streamed every rank must call it, as each knows the places of its own part. */
  override state(): LoaderState {
    const own = super.state();
    if (own.stream === undefined || this.#group === undefined) return own;
    const all = this.#group.exchangeText(JSON.stringify(own.stream), "places in the data");
    return { ...own, stream: furthestPlaces(all.map((text): readonly StreamPlace[] => JSON.parse(text))) };
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
    if (this.#stream !== undefined) {
      return this.#textOf(await this.#stream.beginning(Math.min(most, BEGINNING_TOKENS)));
    }
    const tokens = at(this.#tokens, 0, "source");
    if ("lengthOf" in tokens) {
      const { ids, labels } = await tokens.read(0);
      const first = labels.findIndex((label) => label !== IGNORED);
      return this.tokenizer.decode(
        ids.subarray(0, first > 0 && first <= most ? first : Math.min(most, BEGINNING_TOKENS)),
      );
    }
    const ids = new Int32Array(Math.min(most, BEGINNING_TOKENS, tokens.length));
    await tokens.read(0, ids);
    return this.#textOf(ids);
  }

  /** The text of some first tokens of a document. */
  #textOf(ids: Int32Array): string {
    const end = ids.indexOf(this.tokenizer.eosId ?? -1);
    const text = this.tokenizer.decode(end < 0 ? ids : ids.subarray(0, end)).replace(/\ufffd+$/, "");
    // A word that the limit has cut is left out: the model would continue it wrongly.
    return end < 0 ? text.replace(/(?<=\s)\S+$/, "") : text;
  }

  /** Yields every sample once; the loop's body is a scope, as in {@link take}. */
  override async *[Symbol.asyncIterator](): AsyncGenerator<Batch> {
    for await (const batch of super[Symbol.asyncIterator]()) {
      using _frame = scope();
      yield batch;
    }
  }

  /** Closes the files of tokens. */
  [Symbol.dispose](): void {
    this.#stream?.close();
    for (const tokens of this.#tokens) tokens.close();
  }
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
 * @param inputs files, folders or patterns, or sources with weights, as `a.jsonl:0.7`; `.jsonl` files hold one object a line, any other file is one document. Of folders,
 *   what is hidden, in `node_modules` or no text is skipped, and the group's report says so. Where the rows of some file are
 *   chats or prompts (`.jsonl`, `.json`, `.csv`, also `.gz` of these), each row is a sample of its own: see `docs/chats.md`
 * @throws {ConfigError} naming every input that matches no file, text that cannot be read, or a tokenizer that makes ids which
 *   the model does not have
 * @throws {ConfigError} naming file and line of a row that does not fit or has no token to train on, unless it is to be skipped
 * @throws {ConfigError} if there is less text than one sample, naming the files and how many tokens they have
 * @throws {ArgumentError} if an option is none of these, or the batch cannot be divided among the ranks that read other samples
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
  run: Pick<Run, "group"> & Partial<Pick<Run, "localWorldSize" | "data" | "samples">>,
  model: CausalLm,
  inputs: string | URL | readonly (string | URL)[],
  options: TextDataOptions,
): Promise<TextData> {
  requireRun("open text", run);
  requireKnownKeys("open text", options, KNOWN_OPTIONS);
  requireOpenedModel("textData", model);
  const { group, localWorldSize = group.size, data = group, samples = data } = run;
  // Readers of all formats, which a program without text does not load.
  const { openSource, prepareSource, problemsOfText, requireOnePacking } = await import("./data_source.ts");
  const { sequenceLength, batch, microBatches = 1, seed = 0, eosToken, name = "data", padTo } = options;
  const isPairs = options.isPreference ?? false;
  const paths = (typeof inputs === "string" || inputs instanceof URL ? [inputs] : inputs).map(filePath);
  const { tokenizer, groups } = await group.together("open the tokenizer", async () => {
    const named = options.tokenizer ?? model.files?.folder ?? BYTE_TOKENIZER;
    const tokenizer = typeof named === "string" ? await loadTokenizer(named, { eosToken }) : named;
    if (eosToken !== undefined && typeof named !== "string") {
      const got = `${JSON.stringify(eosToken)} for '${named.path}', which has its own`;
      throw new ConfigError([{ path: "eosToken", expected: "a tokenizer that is read from files", got }]);
    }
    requireVocabulary(tokenizer, model);
    requirePositions(sequenceLength, model);
    return { tokenizer, groups: weightedInputs(paths, name) };
  });
  const isLoaded = tokenizer !== options.tokenizer;
  if (isLoaded && tokenizer.eosNote !== undefined && group.rank === 0) group.report(tokenizer.eosNote);
  const prepared: PreparedSource[] = [];
  for (const part of groups) prepared.push(await prepareSource({ group }, part, tokenizer, options));
  const isText = options.toleratesText !== true && prepared.every(({ source }) => !source.isRows);
  const problems = isText ? problemsOfText(options) : [];
  if (problems.length > 0) {
    // Files without any text are refused as such.
    await group.together("look for text", () => Promise.all(prepared.map(({ source }) => source.requireSome())));
    throw new ConfigError(problems);
  }
  const split = { padTo, isPairs, sequenceLength, seed, microBatches, globalBatch: batch };
  const own = { ...split, rank: samples.rank, worldSize: samples.size };
  const { chatTemplate } = options;
  const { isStreamed, openStream } = await import("./open_stream.ts");
  if (isStreamed(prepared, options)) {
    const stream = await openStream({ group }, prepared, tokenizer, options);
    const isRows = prepared.some(({ source }) => source.isRows);
    const given = { ...own, tokens: stream, packing: stream.packing };
    return new TextData(tokenizer, given, { chatTemplate, isPairs, isRows, group });
  }
  using opening = new DisposableStack();
  const sources: OpenSource[] = [];
  for (const one of prepared) {
    sources.push(await openSource({ group, localWorldSize }, one, tokenizer, options, opening));
  }
  if (sources.some(({ weight }) => weight !== undefined)) requireOnePacking(sources, name);
  const { tokens, packing } = mixed(sources);
  const opened = new TextData(tokenizer, { ...own, tokens, packing }, {
    summaries: sources.flatMap(({ summary }) => summary ?? []),
    ...{ chatTemplate, isPairs, hasLabels: options.hasLabels },
    shares: describeShares(sources, sequenceLength),
  });
  opening.move();
  if (group.rank === 0) {
    for (const { summary } of sources) {
      if (summary !== undefined) { for (const line of lossesOf(summary)) group.report(`${name}: ${line}`); }
    }
    const cut = opened.rows && describeCut(opened.rows, sequenceLength, packing);
    if (cut !== undefined) group.report(cut);
  }
  return opened;
}

/** All sources as one, by their weights. */
function mixed(
  sources: readonly OpenSource[],
): { readonly tokens: Exclude<LoaderOptions["tokens"], StreamedRows>; readonly packing: Packing } {
  const first = at(sources, 0, "source");
  const { packing, weight } = first;
  if (weight === undefined) return first;
  const parts = sources.flatMap(({ tokens, weight }) => weight === undefined ? [] : [{ tokens, weight }]);
  return { tokens: { parts }, packing };
}

/** The sources of a mixture in words; undefined for one source. */
function describeShares(
  sources: readonly OpenSource[],
  sequenceLength: number,
): string | undefined {
  const all = sources.reduce((sum, { weight }) => sum + (weight === undefined ? NaN : weight), 0);
  if (Number.isNaN(all)) return undefined;
  const shares = sources.map((source) => `${namesOf(source)} ${(100 * (source.weight ?? NaN) / all).toFixed(1)} %`);
  return `A mixture of samples of ${countOf(sequenceLength, "token")} at most, of ${shares.join(", ")}`;
}
