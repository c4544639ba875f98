/**
 * Which tokens a part of a text became.
 *
 * Invariant: a token that any of the part lies in belongs to it, as `transformers` counts by the offsets of tokens. Offsets are found by
 * encoding the text up to a place: where its ids begin the ids of the whole text, a token ends at that place.
 *
 * @module
 */
import type { Tokenizer } from "../tokenizer.ts";
import type { Span } from "./template.ts";

/** Longest stretch, in characters, in which an end of a token is looked for behind a place that lies within one. */
const LONGEST_TOKEN = 256;

/**
 * For each token whether some of it lies in a span.
 *
 * @param ids the ids of `text`
 * @param spans in order, none within another
 */
export function tokensIn(
  tokenizer: Tokenizer,
  text: string,
  ids: readonly number[],
  spans: readonly Span[],
): boolean[] {
  const isIn = ids.map(() => false);
  for (const { start, end } of spans) {
    if (start === end) continue;
    isIn.fill(true, commonLength(ids, tokenizer.encode(text.slice(0, start))), endOf(tokenizer, text, ids, end));
  }
  return isIn;
}

/** How many tokens have some text before a place. */
function endOf(tokenizer: Tokenizer, text: string, ids: readonly number[], place: number): number {
  if (place === text.length) return ids.length;
  const last = Math.min(text.length, place + LONGEST_TOKEN);
  for (let end = place; end <= last; end++) {
    const before = text.slice(0, end);
    if (!before.isWellFormed()) continue; // between the halves of a pair
    const prefix = tokenizer.encode(before);
    if (commonLength(ids, prefix) === prefix.length) return prefix.length;
  }
  return ids.length;
}

/** How many ids two lists begin with alike. */
export function commonLength(a: readonly number[], b: readonly number[]): number {
  const most = Math.min(a.length, b.length);
  for (let i = 0; i < most; i++) if (a[i] !== b[i]) return i;
  return most;
}
