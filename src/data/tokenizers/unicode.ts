/**
 * Characters as Python's `tokenizers` classes them, written as classes of JavaScript's regular expressions with the flag v.
 *
 * Invariant: the Unicode version of the runtime does not matter. Bun and Deno know different ones.
 *
 * @module
 */
import { ASSIGNED } from "./unicode_tables.ts";

/** The flags of all expressions here: code points, sets of classes, every match. */
export const FLAGS = "gv";

/** Blanks of Unicode, as Rust and Oniguruma know them: JavaScript's `\s` has U+FEFF besides and lacks U+0085. */
export const WHITE_SPACE = "\\p{White_Space}";

/** A class of ranges in hexadecimal, such as the tables of `unicode_tables.ts`. */
export function classOf(ranges: string): string {
  const codes = ranges.split(" ").map((range) => range.split("-").map((code) => `\\u{${code}}`).join("-"));
  return `[${codes.join("")}]`;
}

let assigned: string | undefined;

/**
 * A property of Unicode in the version that `tokenizers` knows, by a name that JavaScript has too. Code points that are newer
 * have none of the properties.
 */
export function propertyClass(name: string): string {
  assigned ??= classOf(ASSIGNED);
  // Unassigned is whatever that version does not know, and a part of C, "other".
  if (name === "Cn") return `[^${assigned}]`;
  if (name === "C") return `[\\p{C}[^${assigned}]]`;
  const known = `[\\p{${name}}&&${assigned}]`;
  // Unicode 17 made U+0295 a letter without case.
  if (name === "Ll" || name === "Lowercase") return `[${known}\\u0295]`;
  return name === "Lo" ? `[${known}--\\u0295]` : known;
}

/** Characters of words, as `\w` of Oniguruma within a class. */
export function wordClass(): string {
  return `[${["Alphabetic", "M", "Nd", "Pc"].map(propertyClass).join("")}]`;
}

/** Characters of words, as `\w` of Rust. */
export function rustWordClass(): string {
  return `[${wordClass()}\\u200c\\u200d]`;
}

/** Digits and other numbers of Unicode 17, as Rust's `char::is_numeric`. */
export const NUMERIC = "[\\p{N}\\u{11de0}-\\u{11de9}\\u{16ff4}-\\u{16ff6}]";

/** The letter that stands for each byte, as GPT-2 chose them: the byte's own character where it can be seen, else one from 256 on. */
export function byteLetters(): readonly string[] {
  let hidden = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const isSeen = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    return String.fromCharCode(isSeen ? byte : hidden++);
  });
}

const encoder = new TextEncoder();

/** The bytes of a text in UTF-8. */
export function utf8(text: string): Uint8Array {
  return encoder.encode(text);
}

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Text of UTF-8; a U+FFFD for each longest beginning of a character, or byte, that is none. A byte order mark stays. */
export function textOf(bytes: readonly number[]): string {
  return decoder.decode(Uint8Array.from(bytes));
}
