/**
 * Tokens that are found in text before a model sees it: special ones, and others that were added to a vocabulary.
 *
 * @module
 */
import { CheckpointError } from "../../errors.ts";
import type { Normalizer } from "./normalizers.ts";
import type { JsonPart } from "./part.ts";
import { FLAGS, rustWordClass, WHITE_SPACE } from "./unicode.ts";

/** An added token. */
export interface AddedToken {
  readonly id: number;
  readonly content: string;
  /** Not found within a word. */
  readonly singleWord: boolean;
  /** Blanks before it are a part of it. */
  readonly lstrip: boolean;
  /** Blanks behind it are a part of it. */
  readonly rstrip: boolean;
  /** Found in normalized text, where its content is normalized too. */
  readonly normalized: boolean;
  /** Left out of decoded text when asked. */
  readonly special: boolean;
}

/** A part of text: a token, or text without one. */
export interface TextOrToken {
  readonly start: number;
  readonly end: number;
  /** The token; undefined for text without one. */
  readonly id: number | undefined;
}

/** Reads an entry of `added_tokens`. */
export function readAddedToken(part: JsonPart, id: number = part.count("id")): AddedToken {
  part.raw("id");
  const special = part.boolean("special", false);
  const token = {
    id,
    content: part.string("content"),
    singleWord: part.boolean("single_word", false),
    lstrip: part.boolean("lstrip", false),
    rstrip: part.boolean("rstrip", false),
    normalized: part.boolean("normalized", !special),
    special,
  };
  part.raw("__type");
  part.close();
  return token;
}

/** Finds tokens in text: of those that begin first, the longest. */
export class AddedTokenFinder {
  readonly #tokens = new Map<string, AddedToken>();
  /** Lengths that tokens have, by their first unit; the longest first. */
  readonly #lengths = new Map<number, readonly number[]>();
  readonly #first: RegExp | undefined;

  /**
   * @param file the file that names them
   * @param normalize normalizes their contents
   * @throws {CheckpointError} if two of them, or a token and no text, are equal when normalized
   */
  constructor(tokens: readonly AddedToken[], file: string, normalize?: Normalizer) {
    for (const token of tokens) {
      const content = normalize === undefined ? token.content : normalize(token.content);
      const other = this.#tokens.get(content)?.content;
      if (other !== undefined || content === "") {
        const same = other === undefined ? "nothing" : `the same text as of ${JSON.stringify(other)}`;
        throw new CheckpointError(
          file,
          `added_tokens: the normalizer makes ${same} of the token ${JSON.stringify(token.content)}`,
        );
      }
      this.#tokens.set(content, token);
      const unit = content.charCodeAt(0);
      const lengths = new Set([...this.#lengths.get(unit) ?? [], content.length]);
      this.#lengths.set(unit, [...lengths].sort((a, b) => b - a));
    }
    if (this.#tokens.size === 0) return;
    const units = Array.from(this.#lengths.keys(), (unit) => `\\u${unit.toString(16).padStart(4, "0")}`);
    // Without the flags u and v a class is one of units, and a token may begin with half of a pair.
    this.#first = new RegExp(`[${units.join("")}]`, "g");
  }

  /** Divides text, which is not empty. */
  split(text: string): readonly TextOrToken[] {
    const sections: TextOrToken[] = [];
    let done = 0;
    for (const { start: found, end: foundEnd, token } of this.#matches(text)) {
      if (token.singleWord && !isWord(text, found, foundEnd)) continue;
      const start = token.lstrip ? Math.max(blanksBefore(text, found), done) : found;
      const end = token.rstrip ? blanksAfter(text, foundEnd) : foundEnd;
      if (done < start) sections.push({ start: done, end: start, id: undefined });
      // It is empty where the token before it has taken all of its blanks.
      if (start < end) sections.push({ start, end, id: token.id });
      done = end;
    }
    if (done !== text.length) sections.push({ start: done, end: text.length, id: undefined });
    return sections;
  }

  *#matches(text: string): Generator<{ readonly start: number; readonly end: number; readonly token: AddedToken }> {
    if (this.#first === undefined) return;
    for (let from = 0; from < text.length;) {
      this.#first.lastIndex = from;
      const start = this.#first.exec(text)?.index;
      if (start === undefined) return;
      const token = this.#at(text, start);
      from = token === undefined ? start + 1 : token.end;
      if (token !== undefined) yield { start, ...token };
    }
  }

  #at(text: string, start: number): { readonly end: number; readonly token: AddedToken } | undefined {
    for (const length of this.#lengths.get(text.charCodeAt(start)) ?? []) {
      const token = this.#tokens.get(text.slice(start, start + length));
      if (token !== undefined && start + length <= text.length) return { end: start + length, token };
    }
    return undefined;
  }
}

let wordCharacter: RegExp | undefined;

function isWord(text: string, start: number, end: number): boolean {
  wordCharacter ??= new RegExp(`^${rustWordClass()}$`, "v");
  const before = start === 0 ? "" : [...text.slice(Math.max(0, start - 2), start)].at(-1) ?? "";
  const after = end === text.length ? "" : String.fromCodePoint(text.codePointAt(end) ?? 0);
  return !wordCharacter.test(before) && !wordCharacter.test(after);
}

const BLANK = new RegExp(WHITE_SPACE, "v");

function blanksBefore(text: string, end: number): number {
  let start = end;
  while (start > 0 && BLANK.test(text.charAt(start - 1))) start--;
  return start;
}

function blanksAfter(text: string, start: number): number {
  const blanks = new RegExp(`${WHITE_SPACE}*`, `${FLAGS}y`);
  blanks.lastIndex = start;
  return start + (blanks.exec(text)?.[0].length ?? 0);
}
