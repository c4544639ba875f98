/**
 * The asynchronous edge of the step: this rank's part of each step, one read ahead. What it holds is decided by
 * `sampler.ts`; what a row is made of is decided by `token_rows.ts`.
 *
 * Invariant: the state counts samples consumed by all ranks, and a batch read ahead is not consumed until it is handed
 * out, so a saved state resumes on any number of ranks with the very next sample.
 *
 * @module
 */
import { ArgumentError, ConfigError, type ConfigProblem } from "../errors.ts";
import type { Batch, MicroBatch } from "./micro_batch.ts";
import { mixedRows } from "./mixed_rows.ts";
import { type Mixture, MixtureOrder } from "./mixture.ts";
import type { TokenStream } from "./token_stream.ts";
import { rowsOf, type TokenRows } from "./token_rows.ts";
import type { Packing, Rows } from "./samples/rows.ts";
import type { SampleStream } from "./samples/sample.ts";
import { type BatchSplit, microBatchSize, Sampler } from "./sampler.ts";
import { StreamedRows, type StreamPlace } from "./stream/streamed_rows.ts";

/** The state that a resume needs; plain JSON, the same on every rank. */
export interface LoaderState {
  /** Samples consumed by all ranks since the start of training. */
  readonly cursor: number;
  /** Steps taken since then, in whatever global batches. @default the cursor in full steps of the present global batch */
  readonly step?: number | undefined;
  /** The seed of the shuffled order. */
  readonly seed: number;
  /** Tokens of a sample. */
  readonly sequenceLength: number;
  /** Fingerprint of the packed tokens. */
  readonly dataset: string;
  /** The way in which samples became rows. @default wrapped */
  readonly packing?: Packing | undefined;
  /** Of data that is streamed: the place of each lane. @default the data is not streamed */
  readonly stream?: readonly StreamPlace[] | undefined;
}

/** The data that a {@link DataLoader} reads, and this rank's part of it. */
export interface LoaderOptions extends BatchSplit, Pick<LoaderState, "sequenceLength" | "seed"> {
  /** The packed tokens, or samples, or several of them in fixed proportions, or rows that are streamed; left open. */
  readonly tokens: TokenStream | SampleStream | Mixture | StreamedRows;
  /**
   * Makes rows of the tokens. With `bfd` and `bfd-split`, and with `none`, which takes a sample a row, tokens see their own sample
   * alone. @default wrapped
   */
  readonly packing?: Packing | undefined;
  /** Tokens of every row, with `none`. @default the longest row of a micro-batch */
  readonly padTo?: number | undefined;
  /** True if samples 2i and 2i + 1 are pair i, with `none`: samples of a batch are pairs then. @default false */
  readonly isPairs?: boolean | undefined;
}

/** The default packing: no token is lost, and no row has padding. */
const USUAL_PACKING: Packing = "wrapped";

/** Rows that are known by number, with their order; or rows that are streamed. */
type RowOrder = { readonly source: TokenRows; readonly sampler: Sampler } | { readonly stream: StreamedRows };

/** A step that was read, and the places behind it of data that is streamed. */
interface ReadStep {
  readonly batch: Batch;
  readonly places: readonly StreamPlace[] | undefined;
}

/** Gives the steps of one rank in order, without end. */
export class DataLoader {
  /**
   * Samples of one epoch, over all ranks. An epoch of a mixture ends when every source has given all of its samples. Undefined of data
   * that is streamed, whose samples are not known before they are tokenized.
   */
  readonly numSamples: number | undefined;
  /** Samples of one micro-batch. */
  readonly batchSize: number;
  readonly #options: LoaderOptions;
  readonly #order: RowOrder;
  /** Samples consumed by the steps that were handed out. */
  #cursor = 0;
  /** The number of steps taken. A resume may have begun another global batch, so it does not follow from the cursor. */
  #steps = 0;
  /** Of data that is streamed, the places behind the steps that were handed out. */
  #places: readonly StreamPlace[] | undefined;
  #ahead: Promise<ReadStep> | undefined;

  /**
   * Begins at the first step.
   *
   * @throws {ArgumentError} if the global batch cannot be divided evenly, there are too few tokens for one sample, or documents are to
   * be kept apart whose ends are not known
   * @throws {CheckpointError} if a file of tokens is damaged
   */
  constructor(options: LoaderOptions) {
    const { tokens, sequenceLength, seed, packing = USUAL_PACKING, padTo, isPairs } = options;
    this.batchSize = microBatchSize(options);
    this.#options = options;
    if (tokens instanceof StreamedRows) {
      this.#order = { stream: tokens };
      this.#places = tokens.begin();
    } else if ("parts" in tokens) {
      const rows = tokens.parts.map((part) => rowsOf(part.tokens, sequenceLength, packing, { padTo, isPairs }));
      const weights = tokens.parts.map(({ weight }) => weight);
      const source = mixedRows(rows, weights);
      const order = new MixtureOrder(rows.map(({ numRows }) => numRows), weights, seed);
      this.#order = { source, sampler: new Sampler(source.numRows, seed, order) };
    } else {
      const source = rowsOf(tokens, sequenceLength, packing, { padTo, isPairs });
      this.#order = { source, sampler: new Sampler(source.numRows, seed) };
    }
    this.numSamples = "stream" in this.#order ? undefined : this.#order.sampler.numSamples;
  }

  /**
   * The rows that were planned for samples that stay apart, with their padding and the tokens cut off. Undefined for one stream
   * of tokens, and for data that is streamed.
   */
  get rows(): Rows | undefined {
    return "stream" in this.#order ? undefined : this.#order.source.rows;
  }

  /** Full passes over the data that are behind, with fraction; undefined of data that is streamed. */
  get epoch(): number | undefined {
    return this.numSamples === undefined ? undefined : this.#cursor / this.numSamples;
  }

  /** Samples consumed by all ranks since the start of training. */
  get cursor(): number {
    return this.#cursor;
  }

  /** The way in which samples become rows. */
  get packing(): Packing {
    return "stream" in this.#order ? this.#order.stream.packing : this.#order.source.packing;
  }

  /**
   * The next step's part of this rank; the one after it is read meanwhile.
   *
   * @throws if the tokens cannot be read
   */
  async next(): Promise<Batch> {
    const { batch, places } = await (this.#ahead ?? this.#read(this.#cursor, this.#steps + 1));
    this.#places = places;
    this.#cursor += this.#options.globalBatch;
    this.#steps++;
    const ahead = this.#read(this.#cursor, this.#steps + 1);
    // A failure belongs to the call that asks for this batch, which awaits the same promise.
    ahead.catch(() => undefined);
    this.#ahead = ahead;
    return batch;
  }

  /** Gives `steps` steps, to be read by `for await`. */
  async *take(steps: number): AsyncGenerator<Batch> {
    if (!Number.isSafeInteger(steps)) throw new ArgumentError(`Cannot take ${steps} steps: give an integer`);
    for (let i = 0; i < steps; i++) yield await this.next();
  }

  /**
   * Gives every sample once, in data order; the last may be shorter. The training position stays. Ranks may get unequal numbers of
   * batches.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<Batch> {
    const { rank, worldSize } = this.#options;
    const { batchSize } = this;
    if ("stream" in this.#order) {
      const rows = this.#order.stream.inOrder(rank, worldSize, batchSize);
      for await (const microBatch of rows) yield { microBatches: [microBatch] };
      return;
    }
    const { source } = this.#order;
    const { numRows: numSamples } = source;
    for (let first = rank * batchSize; first < numSamples; first += worldSize * batchSize) {
      const samples = Array.from({ length: Math.min(batchSize, numSamples - first) }, (_, i) => first + i);
      yield { microBatches: [await source.load(samples)] };
    }
    if (source.hasRest && rank === worldSize - 1) {
      yield { microBatches: [await source.load([numSamples])] };
    }
  }

  /** The state to resume from. Of data that is streamed, it has the places that this rank knows: see `furthestPlaces`. */
  state(): LoaderState {
    const { seed, sequenceLength } = this.#options;
    const dataset = this.#fingerprint;
    const state = { cursor: this.#cursor, step: this.#steps, seed, sequenceLength, dataset };
    return {
      ...state,
      ...this.packing === USUAL_PACKING ? {} : { packing: this.packing },
      ...this.#places === undefined ? {} : { stream: this.#places },
    };
  }

  get #fingerprint(): string {
    return "stream" in this.#order ? this.#order.stream.fingerprint : this.#order.source.fingerprint;
  }

  /**
   * Continues where a state was taken, on any number of ranks and with any global batch: the next sample is the next one, and steps
   * are counted on.
   *
   * @param state from {@link DataLoader.state}, perhaps through JSON
   * @throws {ConfigError} if seed, sequence length, packing or data are others, or the state is none
   */
  restore(state: LoaderState): void {
    const { seed, sequenceLength, globalBatch } = this.#options;
    const problems: ConfigProblem[] = [];
    const compare = (path: string, saved: unknown, got: unknown): void => {
      if (saved !== got) problems.push({ path, expected: `${saved}, as in the checkpoint`, got: String(got) });
    };
    compare("seed", state.seed, seed);
    compare("sequenceLength", state.sequenceLength, sequenceLength);
    compare("packing", state.packing ?? USUAL_PACKING, this.packing);
    const wasStreamed = state.stream !== undefined;
    compare("streaming", wasStreamed, "stream" in this.#order);
    if (wasStreamed === "stream" in this.#order && state.dataset !== this.#fingerprint) {
      const got = "another text or tokenizer. To train the checkpoint's weights on it, do not resume: open the " +
        "checkpoint's folder as the model ('--model'), with a folder of its own for the output";
      problems.push({ path: "data", expected: "the text and tokenizer of the checkpoint", got });
    }
    if (!Number.isSafeInteger(state.cursor) || state.cursor < 0) {
      const expected = "an integer from 0 in the checkpoint";
      problems.push({ path: "data.cursor", expected, got: String(state.cursor) });
    }
    const { step = Math.floor(state.cursor / globalBatch) } = state;
    if (!Number.isSafeInteger(step) || step < 0) {
      problems.push({ path: "data.step", expected: "an integer from 0 in the checkpoint", got: String(step) });
    }
    if (problems.length > 0) throw new ConfigError(problems);
    if ("stream" in this.#order && state.stream !== undefined) this.#restorePlaces(this.#order.stream, state);
    this.#cursor = state.cursor;
    this.#steps = step;
    this.#ahead = undefined;
  }

  #restorePlaces(stream: StreamedRows, { cursor, stream: places = [] }: LoaderState): void {
    if (!stream.areAt(cursor, places) || !stream.restore(places)) {
      const expected = `places of all lanes after ${cursor} samples in the checkpoint`;
      throw new ConfigError([{ path: "data.stream", expected, got: "others" }]);
    }
    this.#places = places;
  }

  async #read(cursor: number, step: number): Promise<ReadStep> {
    const { seed } = this.#options;
    if ("stream" in this.#order) {
      const { microBatches, places } = await this.#order.stream.read(cursor, this.#options, seed);
      return { batch: { microBatches, step }, places };
    }
    const { sampler, source } = this.#order;
    const microBatches: MicroBatch[] = [];
    for (const { start, samples } of sampler.batchFor(cursor, this.#options, source.lengthOf)) {
      microBatches.push({ ...await source.load(samples), random: { seed, firstSample: start } });
    }
    return { batch: { microBatches, step }, places: undefined };
  }
}
