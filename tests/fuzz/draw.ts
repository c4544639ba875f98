/**
 * Random choices of a fuzzed case, and the numbers of its inputs: both follow from integers alone, so that
 * `tests/parity/make_fuzz.py` makes the same numbers.
 *
 * @module
 */
import { at } from "../../src/at.ts";

/** Spreads the bits of a 32-bit integer. */
export function mix(value: number): number {
  let x = value >>> 0;
  x ^= x >>> 16;
  x = Math.imul(x, 0x7feb352d);
  x ^= x >>> 15;
  x = Math.imul(x, 0x846ca68b);
  x ^= x >>> 16;
  return x >>> 0;
}

/**
 * Numbers of an input. All of them are exact in bfloat16 and float16.
 *
 * - `signed` [-2, 2], `small` [-0.5, 0.5], `positive` [0.125, 2), `negative` (-2, 0], `unit` (0, 1): with equal ones among them
 * - `distinct`: no two of 127 in a row are equal
 * - `mask` 0 or 1, `below` integers from 0 to n - 1, `labels` those, or one of five times `ignore`
 * - `values`: as they are listed
 */
export type Data =
  | { readonly kind: "signed" | "small" | "positive" | "negative" | "unit" | "distinct" | "mask" }
  | { readonly kind: "below"; readonly n: number }
  | { readonly kind: "labels"; readonly n: number; readonly ignore: number }
  | { readonly kind: "values"; readonly values: readonly number[] };

/** The largest magnitude of inputs that are floats. */
export const LARGEST_INPUT = 2;

function element(data: Data, seed: number, i: number): number {
  const h = mix(seed + Math.imul(i + 1, 0x9e3779b9)) >>> 8;
  switch (data.kind) {
    case "signed":
      return (h % 129 - 64) / 32;
    case "small":
      return (h % 65 - 32) / 64;
    case "positive":
      return (h % 60 + 4) / 32;
    case "negative":
      return -(h % 60) / 32;
    case "unit":
      return (h % 31 + 1) / 32;
    case "distinct":
      return ((mix(seed) + 37 * i) % 127 - 63) / 32;
    case "mask":
      return h % 2;
    case "below":
      return h % data.n;
    case "labels":
      return h % 5 === 0 ? data.ignore : h % data.n;
    case "values":
      return at(data.values, i, "value");
  }
}

/** The first `n` numbers. */
export function numbersOf(data: Data, n: number, seed: number): number[] {
  return Array.from({ length: n }, (_, i) => element(data, seed, i));
}

/** Most elements of an input, but where an op needs more. */
const MOST_ELEMENTS = 40;

/** A stream of choices. */
export class Draw {
  #state: number;

  constructor(seed: number) {
    this.#state = mix(seed ^ 0x5bd1e995);
  }

  #next(): number {
    this.#state = (this.#state + 0x9e3779b9) >>> 0;
    return mix(this.#state);
  }

  /** A seed of 31 bits. */
  seed(): number {
    return this.#next() >>> 1;
  }

  /** An integer from `low` to `high`, both possible. */
  int(low: number, high: number): number {
    return low + (this.#next() >>> 4) % (high - low + 1);
  }

  chance(p: number): boolean {
    return (this.#next() >>> 8) / 2 ** 24 < p;
  }

  pick<T>(list: readonly T[]): T {
    return at(list, this.int(0, list.length - 1), "choice");
  }

  /** A size: rarely 0, often 1, and sometimes more than kernels take at once. */
  size(high: number = 5): number {
    if (this.chance(0.02)) return 0;
    if (this.chance(0.02)) return this.int(13, 37);
    return this.chance(0.2) ? 1 : this.int(1, high);
  }

  /** A shape of some dims with few elements. */
  shape(least: number = 0, most: number = 4): number[] {
    const shape: number[] = [];
    let numel = 1;
    for (let dims = this.int(least, most); dims > 0; dims--) {
      const size = this.size(Math.max(1, Math.min(5, Math.floor(MOST_ELEMENTS / Math.max(1, numel)))));
      shape.push(size);
      numel *= size;
    }
    return shape;
  }

  /** A shape that broadcasts to another one. */
  broadcastable(shape: readonly number[]): number[] {
    if (this.chance(0.5)) return [...shape];
    const dropped = this.chance(0.3) ? this.int(0, shape.length) : 0;
    return shape.slice(dropped).map((size) => this.chance(0.3) ? 1 : size);
  }

  /** The numbers from 0 to n - 1 in some order. */
  order(n: number): number[] {
    const order = Array.from({ length: n }, (_, i) => i);
    for (let i = n - 1; i > 0; i--) {
      const j = this.int(0, i);
      [order[i], order[j]] = [at(order, j, "place"), at(order, i, "place")];
    }
    return order;
  }
}
