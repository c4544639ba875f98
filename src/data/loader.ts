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
import type { TokenStream } from "./packing.ts";
import { rowsOf, type TokenRows } from "./token_rows.ts";
import type { Packing, Rows } from "./samples/rows.ts";
import type { SampleStream } from "./samples/sample.ts";
import { type BatchSplit, microBatchSize, Sampler } from "./sampler.ts";

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
}

/** The data that a {@link DataLoader} reads, and this rank's part of it. */
export interface LoaderOptions extends BatchSplit, Pick<LoaderState, "sequenceLength" | "seed"> {
  /** The packed tokens, or samples, or several of them in fixed proportions; left open. */
  readonly tokens: TokenStream | SampleStream | Mixture;
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

/** Gives the steps of one rank in order, without end. */
export class DataLoader {
  /** Samples of one epoch, over all ranks. An epoch of a mixture ends when every source has given all of its samples. */
  readonly numSamples: number;
  /** Samples of one micro-batch. */
  readonly batchSize: number;
  readonly #options: LoaderOptions;
  readonly #source: TokenRows;
  readonly #sampler: Sampler;
  /** Samples consumed by the steps that were handed out. */
  #cursor = 0;
  /** The number of steps taken. A resume may have begun another global batch, so it does not follow from the cursor. */
  #steps = 0;
  #ahead: Promise<Batch> | undefined;

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
    if ("parts" in tokens) {
      const rows = tokens.parts.map((part) => rowsOf(part.tokens, sequenceLength, packing, { padTo, isPairs }));
      const weights = tokens.parts.map(({ weight }) => weight);
      this.#source = mixedRows(rows, weights);
      const order = new MixtureOrder(rows.map(({ numRows }) => numRows), weights, seed);
      this.#sampler = new Sampler(this.#source.numRows, seed, order);
    } else {
      this.#source = rowsOf(tokens, sequenceLength, packing, { padTo, isPairs });
      this.#sampler = new Sampler(this.#source.numRows, seed);
    }
    this.numSamples = this.#sampler.numSamples;
  }

  /**
   * The rows that were planned for samples that stay apart, with their padding and the tokens cut off. Undefined for one stream
   * of tokens.
   */
  get rows(): Rows | undefined {
    return this.#source.rows;
  }

  /** Full passes over the data that are behind, with fraction. */
  get epoch(): number {
    return this.#cursor / this.numSamples;
  }

  /**
   * The next step's part of this rank; the one after it is read meanwhile.
   *
   * @throws if the tokens cannot be read
   */
  async next(): Promise<Batch> {
    const batch = await (this.#ahead ?? this.#read(this.#cursor, this.#steps + 1));
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
   * Gives every sample once, in the order of the text, and the rest after the last one as a shorter sample. It does not move the
   * place that training is at. Ranks may get unequal numbers of batches.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<Batch> {
    const { rank, worldSize } = this.#options;
    const { batchSize } = this;
    const { numRows: numSamples } = this.#source;
    for (let first = rank * batchSize; first < numSamples; first += worldSize * batchSize) {
      const samples = Array.from({ length: Math.min(batchSize, numSamples - first) }, (_, i) => first + i);
      yield { microBatches: [await this.#source.load(samples)] };
    }
    if (this.#source.hasRest && rank === worldSize - 1) {
      yield { microBatches: [await this.#source.load([numSamples])] };
    }
  }

  /** The state to resume from. */
  state(): LoaderState {
    const { seed, sequenceLength } = this.#options;
    const { fingerprint: dataset, packing } = this.#source;
    const state = { cursor: this.#cursor, step: this.#steps, seed, sequenceLength, dataset };
    return packing === USUAL_PACKING ? state : { ...state, packing };
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
    compare("packing", state.packing ?? USUAL_PACKING, this.#source.packing);
    if (state.dataset !== this.#source.fingerprint) {
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
    this.#cursor = state.cursor;
    this.#steps = step;
    this.#ahead = undefined;
  }

  async #read(cursor: number, step: number): Promise<Batch> {
    const microBatches: MicroBatch[] = [];
    const { seed } = this.#options;
    for (const { start, samples } of this.#sampler.batchFor(cursor, this.#options, this.#source.lengthOf)) {
      microBatches.push({ ...await this.#source.load(samples), random: { seed, firstSample: start } });
    }
    return { microBatches, step };
  }
}
