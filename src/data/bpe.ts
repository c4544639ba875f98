/**
 * Byte-pair encoding, learned: the pair of neighbouring tokens that occurs most often becomes a token, again and again.
 * A merge looks at the words that hold its pair, and at no others.
 *
 * Invariant: tokens and merges are the same as from Hugging Face's `BpeTrainer`: of pairs that occur equally often, the one of
 * smaller ids is merged first.
 *
 * @module
 */
import { at } from "../at.ts";
import { byteLetters } from "./tokenizers/unicode.ts";

/** A vocabulary with the merges that made it. */
export interface Bpe {
  /** Tokens by id, in letters that stand for bytes. */
  readonly tokens: readonly string[];
  /** The two tokens of each merge, in order. */
  readonly merges: readonly (readonly [string, string])[];
  /** The number of tokens of all words together. */
  readonly length: number;
}

/** A pair that occurs less often teaches nothing. */
const MIN_FREQUENCY = 2;

/**
 * Learns a vocabulary.
 *
 * @param words number of occurrences of each word; no token reaches beyond a word
 * @param special tokens that come before the 256 bytes
 * @param vocabSize largest number of tokens, at least the number of special tokens and bytes
 */
export function learnBpe(words: ReadonlyMap<string, number>, special: readonly string[], vocabSize: number): Bpe {
  const letters = byteLetters();
  const tokens = [...special, ...[...letters].sort()];
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const idOfByte = letters.map((letter) => tokens.indexOf(letter));
  const encoder = new TextEncoder();
  const pairs = new Pairs(vocabSize);
  const entries = Array.from(words, ([word, frequency]) => {
    const bytes = encoder.encode(word);
    return { symbols: Array.from(bytes, (byte) => at(idOfByte, byte, "id of byte")), frequency };
  });
  for (const entry of entries) pairs.add(entry, entry.frequency);

  const merges: [string, string][] = [];
  for (let pair = pairs.take(); pair !== undefined && tokens.length < vocabSize; pair = pairs.take()) {
    const names: [string, string] = [at(tokens, pair.left, "token"), at(tokens, pair.right, "token")];
    merges.push(names);
    // A token that another pair has spelled before keeps its id.
    const token = names.join("");
    const merged = ids.get(token) ?? tokens.push(token) - 1;
    ids.set(token, merged);
    for (const entry of pair.words) {
      pairs.add(entry, -entry.frequency);
      mergeIn(entry.symbols, pair, merged);
      pairs.add(entry, entry.frequency, merged);
    }
  }
  return {
    tokens,
    merges,
    length: entries.reduce((sum, { symbols, frequency }) => sum + symbols.length * frequency, 0),
  };
}

/** A word as token ids. */
interface Word {
  readonly symbols: number[];
  readonly frequency: number;
}

/** Two neighbouring tokens, and the words that hold them. */
interface Pair {
  readonly left: number;
  readonly right: number;
  readonly words: Set<Word>;
  count: number;
}

/** Joins every such pair of a word, from its start on. */
function mergeIn(symbols: number[], { left, right }: Pair, merged: number): void {
  let length = 0;
  for (let from = 0; from < symbols.length; length++) {
    const isPair = symbols[from] === left && symbols[from + 1] === right;
    symbols[length] = isPair ? merged : at(symbols, from, "symbol");
    from += isPair ? 2 : 1;
  }
  symbols.length = length;
}

/** All pairs with their counts, and a heap that finds the most frequent pair. */
class Pairs {
  readonly #base: number;
  readonly #pairs = new Map<number, Pair>();
  /** Pairs whose count has grown since {@link take}; they are not in the heap with it yet. */
  readonly #grown = new Set<Pair>();
  readonly #heap: { readonly pair: Pair; readonly count: number }[] = [];

  /** @param base above every id */
  constructor(base: number) {
    this.#base = base;
  }

  /** Counts the pairs of a word `times` times. Only pairs with the id `fresh` are new to the word; without it, all are. */
  add(word: Word, times: number, fresh?: number): void {
    const { symbols } = word;
    for (let i = 1; i < symbols.length; i++) {
      const left = at(symbols, i - 1, "symbol");
      const right = at(symbols, i, "symbol");
      const key = left * this.#base + right;
      let pair = this.#pairs.get(key);
      if (pair === undefined) this.#pairs.set(key, pair = { left, right, words: new Set(), count: 0 });
      pair.count += times;
      if (times < 0 || (fresh !== undefined && left !== fresh && right !== fresh)) continue;
      pair.words.add(word);
      this.#grown.add(pair);
    }
  }

  /** The most frequent pair; undefined where none is frequent enough. */
  take(): Pair | undefined {
    for (const pair of this.#grown) this.#push(pair);
    this.#grown.clear();
    for (let top = this.#pop(); top !== undefined; top = this.#pop()) {
      // Merges of others may have taken some of it since it was put there.
      if (top.pair.count === top.count) return top.pair;
      this.#push(top.pair);
    }
    return undefined;
  }

  #push(pair: Pair): void {
    if (pair.count < MIN_FREQUENCY) return;
    let place = this.#heap.push({ pair, count: pair.count }) - 1;
    while (place > 0 && this.#isBefore(place, (place - 1) >> 1)) place = this.#swap(place, (place - 1) >> 1);
  }

  #pop(): { readonly pair: Pair; readonly count: number } | undefined {
    const last = this.#heap.length - 1;
    if (last > 0) this.#swap(0, last);
    const top = this.#heap.pop();
    for (let place = 0; 2 * place + 1 < last;) {
      const child = 2 * place + 1;
      const first = child + 1 < last && this.#isBefore(child + 1, child) ? child + 1 : child;
      if (!this.#isBefore(first, place)) break;
      place = this.#swap(place, first);
    }
    return top;
  }

  #isBefore(one: number, other: number): boolean {
    const [a, b] = [at(this.#heap, one, "entry"), at(this.#heap, other, "entry")];
    return (b.count - a.count || a.pair.left - b.pair.left || a.pair.right - b.pair.right) < 0;
  }

  /** Exchanges two entries; gives the place that the first one has now. */
  #swap(one: number, other: number): number {
    const entry = at(this.#heap, one, "entry");
    this.#heap[one] = at(this.#heap, other, "entry");
    this.#heap[other] = entry;
    return other;
  }
}
