/**
 * Chooses the samples of a step: a global order of all samples, shuffled anew each epoch, from which every rank computes its
 * part. Reading tokens is left to `loader.ts`.
 *
 * Invariant: the order depends on the seed and the number of samples only. A step takes the same samples on any number
 * of ranks with the same global batch, and slice `m * worldSize + rank` of them is micro-batch `m` of a rank, so one rank
 * that accumulates all slices in order adds what the ranks together add.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { keyOf, Permutation } from "../random.ts";
import type { MixtureOrder } from "./mixture.ts";

/** The division of a step's samples over ranks and micro-batches. */
export interface BatchSplit {
  /** Samples of one optimizer step, over all ranks and micro-batches. */
  readonly globalBatch: number;
  /** This rank, among those with data of their own. */
  readonly rank: number;
  /** Number of such ranks. */
  readonly worldSize: number;
  /** Micro-batches that each rank accumulates in a step. */
  readonly microBatches: number;
}

/** Place of a sample in the global order. */
export interface SamplePlace {
  /** Full passes over the data before it; of a mixture, over its source. */
  readonly epoch: number;
  /** Index of the sample in the data. */
  readonly sample: number;
}

/**
 * Samples of one micro-batch.
 *
 * @throws {ArgumentError} if a number is out of range, or the global batch cannot be divided evenly
 */
export function microBatchSize(split: BatchSplit): number {
  const { globalBatch, rank, worldSize, microBatches } = split;
  for (const [name, value] of Object.entries({ globalBatch, worldSize, microBatches, rank })) {
    const least = name === "rank" ? 0 : 1;
    if (!Number.isSafeInteger(value) || value < least) {
      throw new ArgumentError(`${name} must be an integer from ${least}, got ${value}`);
    }
  }
  if (rank >= worldSize) throw new ArgumentError(`rank must be below worldSize ${worldSize}, got ${rank}`);
  const slices = worldSize * microBatches;
  if (globalBatch % slices !== 0) {
    throw new ArgumentError(
      `A global batch must be a multiple of ranks × micro-batches = ${worldSize} × ${microBatches} = ${slices}, ` +
        `got ${globalBatch}: use ${Math.ceil(globalBatch / slices) * slices}, or other micro-batches`,
    );
  }
  return globalBatch / slices;
}

/** The global order of samples. */
export class Sampler {
  /** Samples of one epoch. */
  readonly numSamples: number;
  readonly #key: number;
  #epoch: number | undefined;
  #order: Permutation | undefined;
  readonly #mixture: MixtureOrder | undefined;

  /**
   * @param mixture the order of samples of several sources, in which an epoch has {@link MixtureOrder.numSamples}. @default all
   * samples, shuffled anew each epoch
   * @throws {ArgumentError} if there is no sample, or the seed is no integer from 0 up to 2^53, exclusive
   */
  constructor(numSamples: number, seed: number, mixture?: MixtureOrder) {
    this.#mixture = mixture;
    if (!Number.isSafeInteger(numSamples) || numSamples < 1) {
      throw new ArgumentError(`An epoch has at least 1 sample, got ${numSamples}`);
    }
    this.numSamples = mixture === undefined ? numSamples : mixture.numSamples;
    this.#key = keyOf(seed, "data order");
  }

  /**
   * The sample at a place of the global order.
   *
   * @param index samples taken before it since the start of training, by all ranks
   * @throws {ArgumentError} if it is no integer from 0
   */
  at(index: number): SamplePlace {
    if (!Number.isSafeInteger(index) || index < 0) {
      throw new ArgumentError(`A place in the global order is an integer from 0, got ${index}`);
    }
    if (this.#mixture !== undefined) return this.#mixture.at(index);
    const epoch = Math.floor(index / this.numSamples);
    if (this.#order === undefined || this.#epoch !== epoch) {
      this.#order = new Permutation(this.numSamples, this.#key, epoch);
      this.#epoch = epoch;
    }
    return { epoch, sample: this.#order.at(index % this.numSamples) };
  }

  /**
   * The samples that one rank takes in a step.
   *
   * @param cursor samples consumed before the step, by all ranks
   * @param lengthOf tokens of a sample, where a micro-batch is as long as its longest one: the samples of the step are divided by
   * falling length then. @default they are divided in the global order
   * @returns for each micro-batch the place of its first sample in the global order, and the samples' indices in the data
   * @throws {ArgumentError} if the global batch cannot be divided evenly
   */
  batchFor(
    cursor: number,
    split: BatchSplit,
    lengthOf?: (sample: number) => number,
  ): { readonly start: number; readonly samples: readonly number[] }[] {
    const size = microBatchSize(split);
    if (lengthOf !== undefined) return this.#byLength(cursor, size, split, lengthOf);
    return Array.from({ length: split.microBatches }, (_, m) => {
      const start = cursor + (m * split.worldSize + split.rank) * size;
      return { start, samples: Array.from({ length: size }, (_, i) => this.at(start + i).sample) };
    });
  }

  /** Divides the samples of a step so that the samples of a micro-batch have about the same length, and need little padding. */
  #byLength(cursor: number, size: number, split: BatchSplit, lengthOf: (sample: number) => number) {
    const { globalBatch, microBatches, worldSize, rank } = split;
    const all = Array.from({ length: globalBatch }, (_, i) => this.at(cursor + i).sample)
      .map((sample) => ({ sample, length: lengthOf(sample) }))
      .sort((a, b) => b.length - a.length);
    return Array.from({ length: microBatches }, (_, m) => {
      const first = (m * worldSize + rank) * size;
      return { start: cursor + first, samples: all.slice(first, first + size).map(({ sample }) => sample) };
    });
  }
}
