/**
 * Rows of a file that is one JSON array of objects. Elements are cut out by their brackets, so that no more of the file is in
 * memory than a piece and a row.
 *
 * @module
 */
import { parseObjectOf } from "./json_lines.ts";
import type { ConfigError } from "../../errors.ts";
import { type BadRow, MAX_ROW_BYTES, type Row, rowError, tooLong } from "./row.ts";
import { decodeUtf8, notUtf8 } from "./utf8.ts";

const EXPECTED = "a JSON array of objects";
const [QUOTE, BACKSLASH, COMMA, NEW_LINE] = [34, 92, 44, 10];
const BLANKS: readonly number[] = [32, 9, 10, 13];
const OPENING: readonly number[] = [91, 123];
const CLOSING: readonly number[] = [93, 125];
const [ARRAY_BEGINS, ARRAY_ENDS] = [91, 93];
const BYTE_ORDER_MARK: readonly number[] = [0xef, 0xbb, 0xbf];

/**
 * Rows of pieces of a file.
 *
 * @param name the data's name in errors
 * @throws {ConfigError} where the array itself is broken, as nothing says where the next row begins then
 */
export async function* jsonArray(
  file: string,
  pieces: AsyncIterable<Uint8Array>,
  name: string,
): AsyncGenerator<Row | BadRow> {
  const scanner = new Scanner();
  const fail = (got: string): ConfigError => rowError(name, { file, line: scanner.line }, { expected: EXPECTED, got });
  for await (const piece of pieces) {
    for (const element of scanner.take(piece, fail)) yield { file, ...element };
  }
  if (scanner.state !== "ended") throw fail("the end of the file before the array's: it was cut off, so get it anew");
}

/** A row without its file. */
type Element = Omit<Row, "file"> | Omit<BadRow, "file">;

/** The position of reading: before the array, before an element, inside an element, after an element, after the array. */
type ArrayState = "start" | "element" | "inside" | "comma" | "ended";

class Scanner {
  state: ArrayState = "start";
  /** The line that is read, from 1. */
  line = 1;
  #isFirst = true;
  #depth = 0;
  #inString = false;
  #isEscaped = false;
  #marks = 0;
  /** The line on which the present element began, and what of it was in earlier pieces. */
  #begun: { readonly line: number; readonly parts: Uint8Array[]; byteLength: number } | undefined;

  /** Elements that end in a piece. */
  *take(piece: Uint8Array, fail: (got: string) => ConfigError): Generator<Element> {
    let start = 0;
    for (let i = 0; i < piece.length; i++) {
      const byte = piece[i] ?? NEW_LINE;
      if (byte === NEW_LINE) this.line++;
      if (this.state === "inside") {
        const ends = this.#isBehind(byte);
        if (!ends) continue;
        // A number or a word ends before the byte that shows it, a string or an object with it.
        const end = ends === "before" ? i : i + 1;
        yield this.#finish(piece.subarray(start, end), fail);
        if (ends === "with") continue;
      }
      if (BLANKS.includes(byte)) continue;
      if (this.state === "start") {
        if (BYTE_ORDER_MARK[this.#marks] === byte) this.#marks++;
        else if (byte === ARRAY_BEGINS) this.state = "element";
        else throw fail(`${shownByte(byte)} where the array should begin`);
      } else if (this.state === "ended") throw fail(`${shownByte(byte)} behind the array's end`);
      else if (byte === ARRAY_ENDS && (this.state === "comma" || this.#isFirst)) this.state = "ended";
      else if (this.state === "comma") {
        if (byte !== COMMA) throw fail(`${shownByte(byte)} where a comma should part two rows`);
        this.state = "element";
      } else {
        start = i;
        this.#begin(byte, fail);
      }
    }
    if (this.state !== "inside" || this.#begun === undefined) return;
    this.#begun.byteLength += piece.length - start;
    if (this.#begun.byteLength > MAX_ROW_BYTES) this.#begun.parts.length = 0;
    else this.#begun.parts.push(piece.slice(start));
  }

  #begin(byte: number, fail: (got: string) => ConfigError): void {
    if (CLOSING.includes(byte) || byte === COMMA) throw fail(`${shownByte(byte)} where a row should begin`);
    this.state = "inside";
    this.#isFirst = false;
    this.#begun = { line: this.line, parts: [], byteLength: 0 };
    this.#depth = OPENING.includes(byte) ? 1 : 0;
    this.#inString = byte === QUOTE;
    this.#isEscaped = false;
  }

  /** Tells if the present element ends before a byte or with it; undefined if it does not end there. */
  #isBehind(byte: number): "before" | "with" | undefined {
    if (this.#inString) {
      if (this.#isEscaped) this.#isEscaped = false;
      else if (byte === BACKSLASH) this.#isEscaped = true;
      else if (byte === QUOTE) {
        this.#inString = false;
        return this.#depth === 0 ? "with" : undefined;
      }
      return undefined;
    }
    if (byte === QUOTE) this.#inString = true;
    else if (OPENING.includes(byte)) this.#depth++;
    else if (this.#depth === 0) {
      return byte === COMMA || byte === ARRAY_ENDS || BLANKS.includes(byte) ? "before" : undefined;
    } else if (CLOSING.includes(byte)) return --this.#depth === 0 ? "with" : undefined;
    return undefined;
  }

  #finish(end: Uint8Array, fail: (got: string) => ConfigError): Element {
    const begun = this.#begun;
    if (begun === undefined) throw fail("the end of a row that has not begun");
    this.#begun = undefined;
    this.state = "comma";
    const { line } = begun;
    const byteLength = begun.byteLength + end.length;
    if (byteLength > MAX_ROW_BYTES) return { line, problem: tooLong(byteLength) };
    const bytes = new Uint8Array(byteLength);
    let at = 0;
    for (const part of [...begun.parts, end]) {
      bytes.set(part, at);
      at += part.length;
    }
    const decoded = decodeUtf8(bytes);
    if (!("text" in decoded)) return { line, problem: { expected: "UTF-8 text", got: notUtf8(decoded) } };
    return { line, ...parseObjectOf(decoded.text, "a JSON object as each element") };
  }
}

function shownByte(byte: number): string {
  return byte > 32 && byte < 127 ? `'${String.fromCharCode(byte)}'` : `byte 0x${byte.toString(16).padStart(2, "0")}`;
}
