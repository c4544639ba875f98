/**
 * Philox 4x32-10 in BigInt, written from the paper's definition, and what of it belongs to samples.
 *
 * @module
 */
import { philox4x32 } from "../../../src/random.ts";

const WORD = 2n ** 32n;

/** One block of four words. */
export function philox(counter: readonly bigint[], key: readonly bigint[]): bigint[] {
  let [a, b, c, d] = [counter[0] ?? 0n, counter[1] ?? 0n, counter[2] ?? 0n, counter[3] ?? 0n];
  let [k, l] = [key[0] ?? 0n, key[1] ?? 0n];
  for (let round = 0; round < 10; round++) {
    const [x, y] = [0xd2511f53n * a, 0xcd9e8d57n * c];
    [a, b, c, d] = [(y / WORD) ^ b ^ k, y % WORD, (x / WORD) ^ d ^ l, x % WORD];
    k = (k + 0x9e3779b9n) % WORD;
    l = (l + 0xbb67ae85n) % WORD;
  }
  return [a, b, c, d];
}

/** A place in a sample's numbers. */
export interface SamplePlace {
  readonly key: number;
  readonly sample: number;
  readonly plane: number;
  readonly row: number;
  readonly col: number;
}

const block = new Uint32Array(4);

/** The word of a place: by the library's own Philox, as that in BigInt would take minutes for an attention. */
export function wordOf({ key, sample, plane, row, col }: SamplePlace): number {
  const [low, high] = [sample % 2 ** 32, Math.floor(sample / 2 ** 32) + plane * 2 ** 21];
  philox4x32(block, Math.floor(col / 4), row, low, high, key % 2 ** 32, Math.floor(key / 2 ** 32));
  return block[col % 4] ?? NaN;
}

/** The factor of dropout on the element at a place. */
export function dropoutFactor(p: number, place: SamplePlace): number {
  return p === 0 ? 1 : wordOf(place) < Math.floor(p * 2 ** 32) ? 0 : Math.fround(1 / (1 - p));
}
