/**
 * Finds the tokens that a part of a text became.
 *
 * Invariant: a token belongs to a part if any of its characters does, as `transformers` counts by the offsets of tokens.
 *
 * The ends of tokens are found by encoding the text up to a place: if the ids begin the ids of the full text, a token ends there.
 * Otherwise the texts of single tokens are compared, from the nearest such place before it.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import type { Tokenizer } from "../tokenizer.ts";
import type { TextSpan } from "./template.ts";

/** Longest stretch, in characters, in which an end of a token is looked for before a place. */
const STRETCH = 256;
/** The character that decoded text has in place of an incomplete character. */
const PARTIAL = "\ufffd";

/** A text with its tokens. */
interface Encoded {
  readonly tokenizer: Tokenizer;
  readonly text: string;
  readonly ids: readonly number[];
}

/**
 * For each token whether some of it lies in a span.
 *
 * @param ids the ids of `text`
 * @param spans in order, none within another
 * @throws {InternalError} if the tokenizer's texts of tokens are not the text, so that their places cannot be known
 */
export function tokensIn(
  tokenizer: Tokenizer,
  text: string,
  ids: readonly number[],
  spans: readonly TextSpan[],
): boolean[] {
  const isIn = ids.map(() => false);
  const encoded = { tokenizer, text, ids };
  for (const { start, end } of spans) {
    if (start === end) continue;
    const first = tokensBefore(encoded, start).count;
    const last = tokensBefore(encoded, end);
    isIn.fill(true, first, last.isEnd ? last.count : last.count + 1);
  }
  return isIn;
}

/** The number of tokens that end at or before a place, and true in `isEnd` if one of them ends exactly there. */
function tokensBefore(encoded: Encoded, place: number): { readonly count: number; readonly isEnd: boolean } {
  const { text, ids } = encoded;
  if (place === 0) return { count: 0, isEnd: true };
  if (place === text.length) return { count: ids.length, isEnd: true };
  const count = endAt(encoded, place);
  if (count !== undefined) return { count, isEnd: true };
  let start = place - 1;
  let before = endAt(encoded, start);
  while (before === undefined && start > Math.max(0, place - STRETCH)) before = endAt(encoded, --start);
  return before === undefined ? stepTo(encoded, 0, 0, place) : stepTo(encoded, start, before, place);
}

/** The number of tokens of the text up to a place, if its ids begin the ids of the complete text. */
function endAt({ tokenizer, text, ids }: Encoded, place: number): number | undefined {
  const before = text.slice(0, place);
  if (!before.isWellFormed()) return undefined; // between the halves of a pair
  const prefix = tokenizer.encode(before);
  return commonLength(ids, prefix) === prefix.length ? prefix.length : undefined;
}

/** Goes on token by token from a place where the first `from` tokens end. */
function stepTo(
  { tokenizer, text, ids }: Encoded,
  start: number,
  from: number,
  place: number,
): { readonly count: number; readonly isEnd: boolean } {
  // A decoder may leave out a blank before the first token, so the one before is decoded with them.
  const context = Math.max(0, from - 1);
  const skipped = tokenizer.decode(ids.slice(context, from)).length;
  let [count, end] = [from, start];
  for (let next = from; next < ids.length; next++) {
    const decoded = tokenizer.decode(ids.slice(context, next + 1)).slice(skipped);
    if (decoded.endsWith(PARTIAL) && !text.startsWith(decoded, start)) continue;
    if (!text.startsWith(decoded, start)) {
      const found = JSON.stringify(text.slice(start, start + 20));
      throw new InternalError(
        `tokens of ${tokenizer.path} decode to ${JSON.stringify(decoded)}, where the text has ${found}`,
      );
    }
    if (start + decoded.length > place) break;
    [count, end] = [next + 1, start + decoded.length];
  }
  return { count, isEnd: end === place };
}

/** The number of ids that two lists have in common at their start. */
export function commonLength(a: readonly number[], b: readonly number[]): number {
  const most = Math.min(a.length, b.length);
  for (let i = 0; i < most; i++) if (a[i] !== b[i]) return i;
  return most;
}
