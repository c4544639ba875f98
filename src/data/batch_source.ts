/**
 * Samples as rows of a micro-batch: windows of a stream of tokens, or samples of rows, padded to the longest of them.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { MicroBatch } from "./loader.ts";
import type { TokenStream } from "./packing.ts";
import { IGNORED, type SampleStream } from "./samples/sample.ts";

/** Samples by number, and how they become a micro-batch. */
export interface BatchSource {
  /** Samples of an epoch. */
  readonly numSamples: number;
  /** Changes with the samples: hexadecimal. */
  readonly fingerprint: string;
  /** Tokens that are left behind the last sample; they are evaluated on, and not trained on. */
  readonly rest: number;
  /** Reads samples into rows. */
  load(samples: readonly number[]): Promise<MicroBatch>;
  /** Reads what is left. */
  loadRest(): Promise<MicroBatch>;
}

/**
 * Makes rows of what a loader reads.
 *
 * @param padTo columns of every micro-batch of samples. @default those of its longest sample
 * @throws {ArgumentError} if there is no sample
 */
export function batchSource(data: TokenStream | SampleStream, sequenceLength: number, padTo?: number): BatchSource {
  return "lengthOf" in data ? samplesAsRows(data, padTo) : windowsAsRows(data, sequenceLength);
}

/** Each sample is a window of the packed stream, labeled with the tokens that follow. */
function windowsAsRows(tokens: TokenStream, sequenceLength: number): BatchSource {
  const numSamples = Math.floor((tokens.length - 1) / sequenceLength);
  if (numSamples < 1) {
    throw new ArgumentError(
      `One sample of sequenceLength ${sequenceLength} takes ${sequenceLength + 1} tokens, ` +
        `got ${tokens.length} in all: use more text or shorter samples`,
    );
  }
  const rest = (tokens.length - 1) % sequenceLength;
  const load = async (samples: readonly number[], seq: number): Promise<MicroBatch> => {
    const inputIds = new Int32Array(samples.length * seq);
    const labels = new Int32Array(samples.length * seq);
    const window = new Int32Array(seq + 1);
    for (const [row, sample] of samples.entries()) {
      await tokens.read(sample * sequenceLength, window);
      inputIds.set(window.subarray(0, seq), row * seq);
      labels.set(window.subarray(1), row * seq);
    }
    return { inputIds, labels, batch: samples.length, seq };
  };
  return {
    ...{ numSamples, rest, fingerprint: tokens.fingerprint },
    load: (samples) => load(samples, sequenceLength),
    loadRest: () => load([numSamples], rest),
  };
}

/**
 * Each sample is a row, labeled with its own labels moved by one. Behind its end it is padded with its last token, whose labels are
 * ignored: a causal model shows what is behind to nothing before it, so which token it is does not matter.
 */
function samplesAsRows(samples: SampleStream, padTo: number | undefined): BatchSource {
  if (samples.length < 1) throw new ArgumentError("There is no sample: give at least one");
  const load = async (numbers: readonly number[]): Promise<MicroBatch> => {
    const read = await Promise.all(numbers.map((number) => samples.read(number)));
    // The last token of a sample is predicted and predicts nothing.
    const seq = padTo ?? Math.max(1, ...read.map(({ ids }) => ids.length - 1));
    const inputIds = new Int32Array(read.length * seq);
    const labels = new Int32Array(read.length * seq).fill(IGNORED);
    for (const [row, sample] of read.entries()) {
      const last = sample.ids.at(-1);
      if (last === undefined) throw new ArgumentError(`Sample ${numbers[row]} has no token: give at least one`);
      inputIds.fill(last, row * seq, (row + 1) * seq);
      inputIds.set(sample.ids.subarray(0, seq), row * seq);
      labels.set(sample.labels.subarray(1, seq + 1), row * seq);
    }
    return { inputIds, labels, batch: read.length, seq };
  };
  const nothing = new ArgumentError("Nothing is left behind samples of rows");
  return {
    ...{ numSamples: samples.length, rest: 0, fingerprint: samples.fingerprint, load },
    loadRest: () => Promise.reject(nothing),
  };
}
