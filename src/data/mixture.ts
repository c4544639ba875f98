/**
 * Mixtures: several sources of samples, each with a fixed part. The order of samples is computed from a
 * place, so any rank finds its own, and a resume continues at a number.
 *
 * Invariant: each block of the global order has exactly the whole numbers of samples that the weights say, in an order of its own;
 * every source gives each of its samples once before any of them again.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError, ConfigError, type ConfigProblem } from "../errors.ts";
import { keyOf, Permutation } from "../random.ts";
import { pathKind } from "../runtime/files.ts";
import type { TokenStream } from "./token_stream.ts";
import type { SamplePlace } from "./sampler.ts";
import type { SampleStream } from "./samples/sample.ts";

/** A source of a mixture. */
export interface MixturePart {
  /** The packed tokens, or samples; left open. */
  readonly tokens: TokenStream | SampleStream;
  /** Rows that it gives for the rows that the other sources give: an integer from 1. */
  readonly weight: number;
}

/** Sources whose rows follow each other in fixed proportions. */
export interface Mixture {
  /** At least one. */
  readonly parts: readonly MixturePart[];
}

/** Inputs of a run that are one source, and the weight of it; without one where there is no other source. */
export interface WeightedInputs {
  readonly inputs: readonly string[];
  readonly weight: number | undefined;
}

/** The largest block of an order. */
const MOST_IN_BLOCK = 1_000_000;
const WEIGHTED = /^(?<input>.+):(?<weight>\d+(?:\.\d+)?)$/s;

/**
 * Parts weights from inputs: `a.jsonl:0.7` is a source of weight 0.7, unless a file has that name. Inputs without weights are one
 * source.
 *
 * @param name what errors call the inputs
 * @throws {ConfigError} for weights of some inputs only, weights of 0, and weights of more digits than a block holds
 */
export function weightedInputs(inputs: readonly string[], name: string): readonly WeightedInputs[] {
  const parsed = inputs.map((text) => {
    const { input, weight } = pathKind(text) === "none" ? WEIGHTED.exec(text)?.groups ?? {} : {};
    return input === undefined || weight === undefined ? { text, input: text } : { text, input, weight };
  });
  const bare = parsed.filter(({ weight }) => weight === undefined);
  if (bare.length === parsed.length) return [{ inputs, weight: undefined }];
  const problems: ConfigProblem[] = bare.map(({ text }) => {
    return { path: name, expected: "a weight behind each source, as in 'a.jsonl:0.7'", got: `'${text}' without one` };
  });
  for (const { text, weight } of parsed) {
    if (weight === undefined || Number(weight) > 0) continue;
    problems.push({ path: name, expected: "weights above 0", got: `'${text}': leave it out` });
  }
  if (problems.length > 0) throw new ConfigError(problems);
  const counts = wholeNumbers(parsed.map(({ weight = "" }) => weight), name);
  return parsed.map(({ input }, i) => ({ inputs: [input], weight: at(counts, i, "weight") }));
}

/** The smallest whole numbers in the proportions of decimal numbers. */
function wholeNumbers(weights: readonly string[], name: string): readonly number[] {
  const digits = Math.max(...weights.map((weight) => (weight.split(".")[1] ?? "").length));
  const scaled = weights.map((weight) => {
    const [whole = "", fraction = ""] = weight.split(".");
    return BigInt(whole + fraction.padEnd(digits, "0"));
  });
  const divisor = scaled.reduce((a, b) => {
    let [x, y] = [a, b];
    while (y > 0n) [x, y] = [y, x % y];
    return x;
  });
  const counts = scaled.map((weight) => Number(weight / divisor));
  const block = counts.reduce((sum, count) => sum + count, 0);
  if (block <= MOST_IN_BLOCK) return counts;
  const expected = `weights whose proportions are whole numbers of at most ${MOST_IN_BLOCK} in all`;
  throw new ConfigError([{ path: name, expected, got: `${weights.join(", ")}: give them fewer digits` }]);
}

/** The order in which the sources of a mixture take turns. */
export class SourceOrder {
  /** Samples of a block, in which each source has as many as its weight. */
  readonly blockSize: number;
  readonly #weights: readonly number[];
  readonly #key: number;
  #held: { readonly block: number; readonly order: Permutation } | undefined;

  /**
   * @param weights samples of each source in a block
   * @throws {ArgumentError} if a weight is no integer from 1
   */
  constructor(weights: readonly number[], seed: number) {
    for (const [i, weight] of weights.entries()) {
      if (Number.isSafeInteger(weight) && weight >= 1) continue;
      throw new ArgumentError(`A weight of a mixture is an integer from 1, got ${weight} for source ${i}`);
    }
    this.#weights = weights;
    this.#key = keyOf(seed, "order of sources");
    this.blockSize = weights.reduce((sum, weight) => sum + weight, 0);
  }

  /** The source of a place of the global order, and the samples that it has given before it. @param index from 0 */
  at(index: number): { readonly source: number; readonly taken: number } {
    const block = Math.floor(index / this.blockSize);
    if (this.#held?.block !== block) {
      this.#held = { block, order: new Permutation(this.blockSize, this.#key, block) };
    }
    let slot = this.#held.order.at(index % this.blockSize);
    for (const [source, weight] of this.#weights.entries()) {
      if (slot < weight) return { source, taken: block * weight + slot };
      slot -= weight;
    }
    throw new ArgumentError(`Place ${index} is in no source`);
  }
}

/** The order of the samples of a mixture. */
export class MixtureOrder {
  /** Samples after which every source has given all of its own at least once. */
  readonly numSamples: number;
  readonly #rows: readonly number[];
  readonly #begins: readonly number[];
  readonly #keys: readonly number[];
  readonly #sources: SourceOrder;
  /** The order of the present epoch of each source. */
  readonly #orders = new Map<number, { readonly epoch: number; readonly order: Permutation }>();

  /**
   * @param rows samples of each source
   * @param weights samples of each source in a block
   * @throws {ArgumentError} if a source has no sample, or a weight is no integer from 1
   */
  constructor(rows: readonly number[], weights: readonly number[], seed: number) {
    for (const i of weights.keys()) {
      if (at(rows, i, "source") < 1) throw new ArgumentError(`Source ${i} of a mixture has no sample`);
    }
    this.#sources = new SourceOrder(weights, seed);
    this.#rows = rows;
    this.#keys = weights.map((_, i) => keyOf(seed, `data order of source ${i}`));
    const { blockSize } = this.#sources;
    this.numSamples = Math.max(...rows.map((count, i) => Math.ceil(count * blockSize / at(weights, i, "weight"))));
    const begins = [0];
    for (const count of rows) begins.push(at(begins, begins.length - 1, "begin") + count);
    this.#begins = begins;
  }

  /** The sample at a place of the global order; samples are numbered source after source. @param index from 0 */
  at(index: number): SamplePlace {
    const { source, taken } = this.#sources.at(index);
    const rows = at(this.#rows, source, "source");
    const epoch = Math.floor(taken / rows);
    const sample = this.#order(source, rows, epoch).at(taken % rows);
    return { epoch, sample: at(this.#begins, source, "begin") + sample };
  }

  #order(source: number, length: number, epoch: number): Permutation {
    const held = this.#orders.get(source);
    if (held?.epoch === epoch) return held.order;
    const order = new Permutation(length, at(this.#keys, source, "source"), epoch);
    this.#orders.set(source, { epoch, order });
    return order;
  }
}
