/**
 * Pre-tokenizers of a `tokenizer.json`: they cut text into the pieces that a model tokenizes each by itself.
 *
 * @module
 */
import type { JsonPart } from "./part.ts";
import { patternOf } from "./pattern.ts";
import { literalRegex, translateRegex } from "./regex.ts";
import { type Behavior, BEHAVIORS, splitBy, type TextPiece } from "./split.ts";
import { byteLetters, classOf, FLAGS, NUMERIC, rustWordClass, utf8, WHITE_SPACE } from "./unicode.ts";
import { PUNCTUATION } from "./unicode_tables.ts";

/** Cuts pieces into smaller ones. */
export type PreTokenizer = (pieces: readonly TextPiece[]) => readonly TextPiece[];

/** A pre-tokenizer, and what else of it counts. */
export interface PreTokenizerPart {
  readonly cut: PreTokenizer;
  /** True if it needs to know which piece is the first of the text. */
  readonly needsFirst: boolean;
  /** True if a piece may begin with a character that was not in the text. */
  readonly movesStart: boolean;
}

/** The types that {@link readPreTokenizer} supports. */
const TYPES = [
  "ByteLevel",
  "Split",
  "Digits",
  "Metaspace",
  "Whitespace",
  "WhitespaceSplit",
  "BertPreTokenizer",
  "Punctuation",
  "CharDelimiterSplit",
  "FixedLength",
  "Sequence",
] as const;

/** GPT-2's words. */
const BYTE_LEVEL_WORDS = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;

/**
 * Reads a pre-tokenizer.
 *
 * @throws {CheckpointError} naming what is not supported
 */
export function readPreTokenizer(part: JsonPart): PreTokenizerPart {
  const made = make(part);
  part.close();
  return made;
}

function make(part: JsonPart): PreTokenizerPart {
  const type = TYPES.find((name) => name === part.type) ?? part.refuseType(TYPES);
  switch (type) {
    case "ByteLevel":
      return byteLevel(part);
    case "Split":
      return cutter(patternOf(part), part.oneOf("behavior", BEHAVIORS), part.boolean("invert", false));
    case "Digits":
      return cutter(new RegExp(NUMERIC, FLAGS), part.boolean("individual_digits") ? "Isolated" : "Contiguous");
    case "Metaspace":
      return metaspace(part);
    case "Whitespace":
      return cutter(new RegExp(`${rustWordClass()}+|[^${rustWordClass()}${WHITE_SPACE}]+`, FLAGS), "Removed", true);
    case "WhitespaceSplit":
      return cutter(new RegExp(WHITE_SPACE, FLAGS), "Removed");
    case "BertPreTokenizer": {
      const blanks = cutter(new RegExp(WHITE_SPACE, FLAGS), "Removed");
      const marks = cutter(new RegExp(classOf(PUNCTUATION), FLAGS), "Isolated");
      return { ...blanks, cut: (pieces) => marks.cut(blanks.cut(pieces)) };
    }
    case "Punctuation":
      return cutter(new RegExp(classOf(PUNCTUATION), FLAGS), part.oneOf("behavior", BEHAVIORS, "Isolated"));
    case "CharDelimiterSplit":
      return cutter(literalRegex(part.character("delimiter")), "Removed");
    case "FixedLength": {
      const length = part.count("length", 5);
      if (length === 0) part.fail("length", "1 or more");
      return cutter(new RegExp(`[^]{1,${length}}`, FLAGS), "Isolated");
    }
    case "Sequence": {
      const steps = part.parts("pretokenizers").map(readPreTokenizer);
      const late = steps.findIndex(({ needsFirst }, i) =>
        needsFirst && steps.slice(0, i).some((one) => one.movesStart)
      );
      if (late >= 0) {
        part.refuse("pretokenizers", "Metaspace with prepend_scheme 'first' after one that adds characters");
      }
      return {
        cut: (pieces) => steps.reduce((current, { cut }) => cut(current), pieces),
        needsFirst: steps.some(({ needsFirst }) => needsFirst),
        movesStart: steps.some(({ movesStart }) => movesStart),
      };
    }
  }
}

function cutter(pattern: RegExp, behavior: Behavior, invert = false): PreTokenizerPart {
  const cut: PreTokenizer = (pieces) => {
    const out: TextPiece[] = [];
    for (const piece of pieces) splitBy(piece, pattern, behavior, invert, out);
    return out;
  };
  return { cut, needsFirst: false, movesStart: false };
}

function byteLevel(part: JsonPart): PreTokenizerPart {
  const addsBlank = part.boolean("add_prefix_space", true);
  part.boolean("trim_offsets", true);
  const { source, flags } = translateRegex(BYTE_LEVEL_WORDS);
  const words = part.boolean("use_regex", true) ? new RegExp(source, flags) : undefined;
  const toLetters = lettersOf();
  const cut: PreTokenizer = (pieces) => {
    const out: TextPiece[] = [];
    for (const piece of pieces) {
      const begins = !addsBlank || piece.text.startsWith(" ");
      const whole = begins ? piece : { text: ` ${piece.text}`, isFirst: piece.isFirst };
      if (words === undefined) out.push(whole);
      else splitBy(whole, words, "Isolated", false, out);
    }
    return out.map(({ text, isFirst }) => ({ text: toLetters(text), isFirst }));
  };
  return { cut, needsFirst: false, movesStart: addsBlank };
}

/** Writes the bytes of a text as letters. */
function lettersOf(): (text: string) => string {
  const letters = byteLetters();
  const other = /[^\x21-\x7e]/;
  return (text) => {
    if (!other.test(text)) return text;
    let out = "";
    for (let i = 0; i < text.length; i++) {
      const unit = text.charCodeAt(i);
      if (unit > 0x7f) return Array.from(utf8(text), (byte) => letters[byte]).join("");
      out += letters[unit] ?? "";
    }
    return out;
  };
}

function metaspace(part: JsonPart): PreTokenizerPart {
  const replacement = part.character("replacement");
  if (part.string("str_rep", replacement) !== replacement) part.refuse("str_rep", "it is not the replacement");
  const declared = part.oneOf("prepend_scheme", ["always", "first", "never"], "always");
  const scheme = part.boolean("add_prefix_space", true) ? declared : "never";
  const cuts = part.boolean("split", true);
  const pattern = literalRegex(replacement);
  const cut: PreTokenizer = (pieces) => {
    const out: TextPiece[] = [];
    for (const piece of pieces) {
      const text = piece.text.replaceAll(" ", replacement);
      const prepends = scheme === "always" || (scheme === "first" && piece.isFirst);
      const whole = { ...piece, text: prepends && !text.startsWith(replacement) ? `${replacement}${text}` : text };
      if (cuts) splitBy(whole, pattern, "MergedWithNext", false, out);
      else out.push(whole);
    }
    return out;
  };
  return { cut, needsFirst: scheme === "first", movesStart: scheme !== "never" };
}
