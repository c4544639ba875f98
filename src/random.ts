/**
 * Random numbers on the host: Philox 4x32-10, a counter-based generator, so that number `i` of a key can be had
 * without the numbers before it. Tensors are filled by the device's kernels from the same generator; this file
 * derives their keys and orders data.
 *
 * Invariant: only integer arithmetic, so every runtime gives the same numbers. {@link keyOf} never changes its values:
 * what a seed initializes would change with it.
 *
 * @module
 */
import { at } from "./at.ts";
import { ArgumentError } from "./errors.ts";

/**
 * The source that a model draws from while it trains, for dropout and sampled routing. A number depends on the seed, the layer, the
 * sample and the place in it: neither on the rank that computes a sample nor on the micro-batch that holds it.
 */
export interface RandomSource {
  /** The same on every rank; an integer from 0 up to 2^53, exclusive. */
  readonly seed: number;
  /**
   * Number of the first sample of this micro-batch among all samples that the training takes, on all ranks and in all steps; the
   * other samples follow it. Samples of one number have the same numbers drawn.
   */
  readonly firstSample: number;
}

/** One more than the largest key, counter or seed: 2^53. */
const LIMIT = 2 ** 53;
const WORD = 2 ** 32;

/**
 * One block of Philox 4x32-10: 128 random bits, written to the four words of `out`, from a 128-bit counter and a 64-bit
 * key, lowest words first.
 */
export function philox4x32(
  out: Uint32Array,
  c0: number,
  c1: number,
  c2: number,
  c3: number,
  k0: number,
  k1: number,
): void {
  for (let round = 0; round < 10; round++) {
    const high0 = multiplyHigh(0xd2511f53, c0);
    const low0 = Math.imul(0xd2511f53, c0);
    const high1 = multiplyHigh(0xcd9e8d57, c2);
    const low1 = Math.imul(0xcd9e8d57, c2);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 = (k0 + 0x9e3779b9) | 0;
    k1 = (k1 + 0xbb67ae85) | 0;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/** Upper 32 bits of the product of two unsigned 32-bit numbers, by 16-bit halves; each partial sum fits into 32 bits. */
function multiplyHigh(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  const middle = (Math.imul(aHigh, bLow) + (Math.imul(aLow, bLow) >>> 16)) >>> 0;
  const carry = ((middle & 0xffff) + Math.imul(aLow, bHigh)) >>> 0;
  return (Math.imul(aHigh, bHigh) + (middle >>> 16) + (carry >>> 16)) | 0;
}

/**
 * A key for one named stream of random numbers, e.g. a parameter's initial values.
 *
 * A 128-bit state starts as (seed's low word, seed's high word, byte length, 0). Each 8 bytes of the UTF-8 name, padded
 * with zeros, are the key (two little-endian words) of one Philox block over the state, which the block replaces; a last
 * block has the key (0, 1). The result is word 0 and the low 21 bits of word 1.
 *
 * @param seed an integer from 0 up to 2^53, exclusive
 * @param name any text: an FQN, or a purpose such as `data order`
 * @returns an integer from 0 up to 2^53, exclusive; names and seeds that differ in one bit give unrelated keys
 * @throws {ArgumentError} if the seed is none
 * @example
 * ```ts
 * import { keyOf } from "fullyshard/testing";
 * if (keyOf(0, "model.embed_tokens.weight") === keyOf(1, "model.embed_tokens.weight")) throw new Error("equal");
 * ```
 */
export function keyOf(seed: number, name: string): number {
  checkSeed(seed);
  const bytes = new TextEncoder().encode(name);
  const padded = new Uint8Array(Math.ceil(bytes.length / 8) * 8);
  padded.set(bytes);
  const view = new DataView(padded.buffer);
  const state = Uint32Array.of(seed % WORD, Math.floor(seed / WORD), bytes.length, 0);
  for (let place = 0; place < padded.length; place += 8) {
    absorb(state, view.getUint32(place, true), view.getUint32(place + 4, true));
  }
  absorb(state, 0, 1);
  return integerOf(state);
}

/** The integer below 2^53 that the first two words make. */
function integerOf(words: Uint32Array): number {
  return (at(words, 1, "word") & 0x1fffff) * WORD + at(words, 0, "word");
}

function absorb(state: Uint32Array, k0: number, k1: number): void {
  const word = (place: number): number => at(state, place, "word");
  philox4x32(state, word(0), word(1), word(2), word(3), k0, k1);
}

/**
 * Number `index` of a key's stream of unbiased integers.
 *
 * @param key from {@link keyOf}
 * @param index which number, an integer from 0 up to 2^53, exclusive
 * @param bound one more than the largest result, 1 to 2^53
 * @returns an integer in [0, bound)
 * @throws {ArgumentError} if an argument is out of range
 */
export function uniformInt(key: number, index: number, bound: number): number {
  checkSeed(key, "key");
  checkSeed(index, "index");
  if (!Number.isInteger(bound) || bound < 1 || bound > LIMIT) {
    throw new ArgumentError(`Bound must be an integer from 1 to 2^53, got ${bound}`);
  }
  const block = new Uint32Array(4);
  const usable = LIMIT - LIMIT % bound;
  for (let attempt = 0;; attempt++) {
    philox4x32(block, index % WORD, Math.floor(index / WORD), attempt, 0, key % WORD, Math.floor(key / WORD));
    const value = integerOf(block);
    if (value < usable) return value % bound;
  }
}

/** A fraction drawn as {@link uniformInt} draws: a multiple of 2^-53 in [0, 1). */
export function uniformFraction(key: number, index: number): number {
  return uniformInt(key, index, LIMIT) / LIMIT;
}

/**
 * A random permutation of [0, length) that is computed, not stored: place `i` costs about ten Philox blocks, whatever
 * the length, so any rank can ask for any place of any epoch.
 *
 * A Feistel network of eight rounds over an even number of bits, the least that holds `length`, with Philox as the round
 * function; a result outside of [0, length) is put through again until it falls inside, which keeps it a permutation.
 */
export class Permutation {
  /** Number of places. */
  readonly length: number;
  readonly #k0: number;
  readonly #k1: number;
  readonly #tweak0: number;
  readonly #tweak1: number;
  readonly #half: number;
  readonly #block: Uint32Array = new Uint32Array(4);

  /**
   * @param length number of places, 0 to 2^53
   * @param key from {@link keyOf}
   * @param tweak which permutation of that key, e.g. the epoch
   * @throws {ArgumentError} if an argument is out of range
   */
  constructor(length: number, key: number, tweak: number) {
    checkSeed(length, "length");
    checkSeed(key, "key");
    checkSeed(tweak, "tweak");
    this.length = length;
    this.#k0 = key % WORD;
    this.#k1 = Math.floor(key / WORD);
    this.#tweak0 = tweak % WORD;
    this.#tweak1 = Math.floor(tweak / WORD);
    let half = 2;
    while (half * half < length) half *= 2;
    this.#half = half;
  }

  /** The value at a place, another for every place. @throws {ArgumentError} if it is no integer in [0, length) */
  at(place: number): number {
    if (!Number.isInteger(place) || place < 0 || place >= this.length) {
      throw new ArgumentError(`Place must be an integer from 0 to ${this.length - 1}, got ${place}`);
    }
    let value = place;
    do value = this.#mix(value); while (value >= this.length);
    return value;
  }

  #mix(value: number): number {
    const half = this.#half;
    let left = Math.floor(value / half);
    let right = value % half;
    for (let round = 0; round < 8; round++) {
      philox4x32(this.#block, right, round, this.#tweak0, this.#tweak1, this.#k0, this.#k1);
      [left, right] = [right, (left ^ at(this.#block, 0, "word")) & (half - 1)];
    }
    return left * half + right;
  }
}

/** @throws {ArgumentError} if a number is no seed, key or index */
export function checkSeed(value: number, what: string = "seed"): void {
  if (!Number.isSafeInteger(value) || value < 0) {
    throw new ArgumentError(`The ${what} must be an integer from 0 to 2^53 - 1, got ${value}`);
  }
}
