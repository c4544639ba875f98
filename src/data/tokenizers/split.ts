/**
 * Cuts text where a pattern matches, in the ways that Python's `tokenizers` has.
 *
 * @module
 */

/** The treatment of a match: a piece of its own, removed, part of a neighbouring piece, or one piece with the matches beside it. */
export const BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"] as const;

/** One of {@link BEHAVIORS}. */
export type Behavior = typeof BEHAVIORS[number];

/** A piece of text that a pre-tokenizer has made. */
export interface TextPiece {
  readonly text: string;
  /** True if its first character is the first of the full text. */
  readonly isFirst: boolean;
}

/** A part of a text that matches the pattern, or that lies between two matches. */
interface MatchedSpan {
  readonly start: number;
  end: number;
  readonly isMatch: boolean;
}

/** Cuts a piece; `invert` takes what does not match for what does. Adds the pieces to `out`. */
export function splitBy(
  piece: TextPiece,
  pattern: RegExp,
  behavior: Behavior,
  invert: boolean,
  out: TextPiece[],
): void {
  const { text } = piece;
  const add = (start: number, end: number): void => {
    if (start === end) return;
    out.push(
      start === 0 && end === text.length
        ? piece
        : { text: text.slice(start, end), isFirst: piece.isFirst && start === 0 },
    );
  };
  if (behavior === "Isolated" || behavior === "Removed") {
    const keepsMatches = behavior === "Isolated" || invert;
    const keepsRest = behavior === "Isolated" || !invert;
    let end = 0;
    pattern.lastIndex = 0;
    for (let match = pattern.exec(text); match !== null; match = pattern.exec(text)) {
      const [{ length }] = match;
      if (length === 0) pattern.lastIndex = match.index + ((text.codePointAt(match.index) ?? 0) > 0xffff ? 2 : 1);
      if (length === 0 && isWithinPair(text, match.index)) continue;
      if (keepsRest) add(end, match.index);
      if (keepsMatches) add(match.index, match.index + length);
      // Nothing that matches cuts as well.
      end = match.index + length;
    }
    if (keepsRest) add(end, text.length);
    return;
  }
  for (const { start, end } of merge(spansOf(text, pattern, invert), behavior)) add(start, end);
}

function spansOf(text: string, pattern: RegExp, invert: boolean): MatchedSpan[] {
  const spans: MatchedSpan[] = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    const [{ length }] = match;
    // Oniguruma's search finds no empty match where the last match ended.
    if (length === 0 && ((match.index === end && spans.length > 0) || isWithinPair(text, match.index))) continue;
    if (match.index > end) spans.push({ start: end, end: match.index, isMatch: invert });
    end = match.index + length;
    spans.push({ start: match.index, end, isMatch: !invert });
  }
  if (end < text.length) spans.push({ start: end, end: text.length, isMatch: invert });
  return spans;
}

/** True if a place is between the two UTF-16 units of a character, where V8 finds empty matches. */
function isWithinPair(text: string, at: number): boolean {
  return at > 0 && (text.codePointAt(at - 1) ?? 0) > 0xffff;
}

/** Puts a text in the place of each match. */
export function replaceMatches(text: string, pattern: RegExp, content: string): string {
  let end = -1;
  return text.replace(pattern, (match: string, ...rest: unknown[]) => {
    // Arguments: the match, its groups (of atomic groups only), its place, the text.
    const at = rest.find((value) => typeof value === "number") ?? 0;
    if (match === "" && (at === end || isWithinPair(text, Number(at)))) return "";
    end = Number(at) + match.length;
    return content;
  });
}

function merge(spans: readonly MatchedSpan[], behavior: Behavior): readonly MatchedSpan[] {
  const out: MatchedSpan[] = [];
  let wasMatch = false;
  if (behavior === "MergedWithNext") {
    for (const span of spans.toReversed()) {
      const last = out.at(-1);
      if (span.isMatch && !wasMatch && last !== undefined) out[out.length - 1] = { ...last, start: span.start };
      else out.push(span);
      wasMatch = span.isMatch;
    }
    return out.reverse();
  }
  for (const span of spans) {
    const last = out.at(-1);
    const joins = behavior === "Contiguous" ? span.isMatch === wasMatch : span.isMatch && !wasMatch;
    if (joins && last !== undefined) last.end = span.end;
    else out.push({ ...span });
    wasMatch = span.isMatch;
  }
  return out;
}
