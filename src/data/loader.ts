/**
 * The asynchronous edge of the step: this rank's part of each step, one read ahead. What it holds is decided by
 * `sampler.ts`; where tokens come from is decided by `packing.ts`.
 *
 * Invariant: the state counts samples consumed by all ranks, and a batch read ahead is not consumed until it is handed
 * out, so a saved state resumes on any number of ranks with the very next sample.
 *
 * @module
 */
import { ArgumentError, ConfigError, type ConfigProblem } from "../errors.ts";
import type { RandomSource } from "../random.ts";
import { type BatchSource, batchSource } from "./batch_source.ts";
import type { TokenStream } from "./packing.ts";
import type { SampleStream } from "./samples/sample.ts";
import { type BatchSplit, microBatchSize, Sampler } from "./sampler.ts";

/** What a rank runs forward and backward at once. */
export interface MicroBatch {
  /** Token ids, row-major [batch, seq]. */
  readonly inputIds: Int32Array;
  /** The token that each position is to predict, [batch, seq]; -100 counts for nothing. */
  readonly labels: Int32Array;
  /** Samples. */
  readonly batch: number;
  /** Tokens of each sample. */
  readonly seq: number;
  /**
   * What dropout and sampled routing draw from in training; a {@link DataLoader} counts the samples in the order in which it gives
   * them. @default there is nothing, and a model that draws is refused
   */
  readonly random?: RandomSource | undefined;
}

/** One step's part of one rank. */
export interface Batch {
  /** At least one, and as many on every rank. */
  readonly microBatches: readonly MicroBatch[];
  /** The step's number from 1, for messages. */
  readonly step?: number;
}

/** What a resume needs; plain JSON, the same on every rank. */
export interface LoaderState {
  /** Samples consumed by all ranks since the start of training. */
  readonly cursor: number;
  /** Steps taken since then, in whatever global batches. @default the cursor in whole steps of the present global batch */
  readonly step?: number | undefined;
  /** What the order is shuffled by. */
  readonly seed: number;
  /** Tokens of a sample. */
  readonly sequenceLength: number;
  /** Fingerprint of the packed tokens. */
  readonly dataset: string;
}

/** What a {@link DataLoader} reads, and its part. */
export interface LoaderOptions extends BatchSplit, Pick<LoaderState, "sequenceLength" | "seed"> {
  /** The packed tokens, of which samples are windows, or samples, of which each is a row; left open. */
  readonly tokens: TokenStream | SampleStream;
  /**
   * Tokens that rows of samples are padded to. @default the longest sample of a micro-batch
   */
  readonly padTo?: number | undefined;
}

/** Gives the steps of one rank in order, without end. */
export class DataLoader {
  /** Samples of one epoch, over all ranks. */
  readonly numSamples: number;
  /** Samples of one micro-batch. */
  readonly batchSize: number;
  readonly #options: LoaderOptions;
  readonly #source: BatchSource;
  readonly #sampler: Sampler;
  /** Samples consumed by the steps that were handed out. */
  #cursor = 0;
  /** How many they are: a resume may have begun another global batch, so they do not follow from the cursor. */
  #steps = 0;
  #ahead: Promise<Batch> | undefined;

  /**
   * Begins at the first step.
   *
   * @throws {ArgumentError} if the global batch cannot be divided evenly, or there are too few tokens for one sample
   */
  constructor(options: LoaderOptions) {
    const { tokens, sequenceLength, seed, padTo } = options;
    if (!Number.isSafeInteger(sequenceLength) || sequenceLength < 1) {
      throw new ArgumentError(`sequenceLength must be an integer from 1, got ${sequenceLength}`);
    }
    this.batchSize = microBatchSize(options);
    this.#source = batchSource(tokens, sequenceLength, padTo);
    this.numSamples = this.#source.numSamples;
    this.#options = options;
    this.#sampler = new Sampler(this.numSamples, seed);
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
   * Gives every sample once, in the order of the text, and what is left behind the last one as a shorter sample. It does not move the
   * place that training is at. Ranks may get unequal numbers of batches.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<Batch> {
    const { rank, worldSize } = this.#options;
    const { batchSize, numSamples } = this;
    for (let first = rank * batchSize; first < numSamples; first += worldSize * batchSize) {
      const samples = Array.from({ length: Math.min(batchSize, numSamples - first) }, (_, i) => first + i);
      yield { microBatches: [await this.#source.load(samples)] };
    }
    if (this.#source.rest > 0 && rank === worldSize - 1) yield { microBatches: [await this.#source.loadRest()] };
  }

  /** Where training stands. */
  state(): LoaderState {
    const { seed, sequenceLength, tokens } = this.#options;
    return { cursor: this.#cursor, step: this.#steps, seed, sequenceLength, dataset: tokens.fingerprint };
  }

  /**
   * Continues where a state was taken, on any number of ranks and with any global batch: the next sample is the next one, and steps
   * are counted on.
   *
   * @param state from {@link DataLoader.state}, perhaps through JSON
   * @throws {ConfigError} if seed, sequence length or data are others, or the state is none
   */
  restore(state: LoaderState): void {
    const { seed, sequenceLength, tokens, globalBatch } = this.#options;
    const problems: ConfigProblem[] = [];
    const compare = (path: string, saved: unknown, got: unknown): void => {
      if (saved !== got) problems.push({ path, expected: `${saved}, as in the checkpoint`, got: String(got) });
    };
    compare("seed", state.seed, seed);
    compare("sequenceLength", state.sequenceLength, sequenceLength);
    if (state.dataset !== tokens.fingerprint) {
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
    for (const { start, samples } of this.#sampler.batchFor(cursor, this.#options)) {
      microBatches.push({ ...await this.#source.load(samples), random: { seed, firstSample: start } });
    }
    return { microBatches, step };
  }
}
