/**
 * Rows of a CSV file, as RFC 4180 and Python's `csv` read it: the first line names the columns, cells in quotes may hold commas,
 * line ends and doubled quotes. Cells are text; an empty one is null, as `datasets` reads it.
 *
 * @module
 */
import type { ConfigError } from "../../errors.ts";
import type { JsonObject } from "../../json.ts";
import { type BadRow, MAX_ROW_BYTES, type Row, rowError, tooLong } from "./row.ts";

/** A record and where it begins. */
interface CsvRecord {
  readonly line: number;
  /** Cells; whether each was written without quotes. */
  readonly cells: readonly { readonly text: string; readonly isBare: boolean }[];
  readonly length: number;
}

/**
 * Rows of pieces of a file.
 *
 * @param name the data's name in errors
 * @throws {ConfigError} if it is no UTF-8, the header names no columns or a column twice, or a quote is never closed
 */
export async function* csvRows(
  file: string,
  pieces: AsyncIterable<Uint8Array>,
  name: string,
): AsyncGenerator<Row | BadRow> {
  let columns: readonly string[] | undefined;
  for await (const { line, cells, length } of recordsOf(file, pieces, name)) {
    const texts = cells.map(({ text }) => text);
    if (columns === undefined) {
      requireHeader(texts, file, line, name);
      columns = texts;
      continue;
    }
    if (cells.length === 1 && texts[0] === "") continue; // a blank line
    if (length > MAX_ROW_BYTES) yield { file, line, problem: tooLong(length) };
    else if (cells.length !== columns.length) {
      const got =
        `${cells.length}: a cell with a comma, a quote or a line end stands in quotes, its own quotes doubled`;
      yield { file, line, problem: { expected: `${columns.length} cells, as the header has`, got } };
    } else yield { file, line, value: objectOf(columns, cells) };
  }
}

function objectOf(columns: readonly string[], cells: CsvRecord["cells"]): JsonObject {
  return Object.fromEntries(cells.map(({ text, isBare }, i) => [columns[i], text === "" && isBare ? null : text]));
}

function requireHeader(columns: readonly string[], file: string, line: number, name: string): void {
  const twice = columns.find((column, i) => columns.indexOf(column) !== i);
  if (columns.length > 1 && twice === undefined) return;
  const got = twice === undefined ? JSON.stringify(columns[0] ?? "") : `'${twice}' twice`;
  const expected = "a first line with the columns' names, parted by commas, each once";
  throw rowError(name, { file, line }, { expected, got });
}

async function* recordsOf(file: string, pieces: AsyncIterable<Uint8Array>, name: string): AsyncGenerator<CsvRecord> {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const parser = new CsvParser();
  const decode = (piece?: Uint8Array): string => {
    try {
      return piece === undefined ? decoder.decode() : decoder.decode(piece, { stream: true });
    } catch (cause) {
      if (!(cause instanceof TypeError)) throw cause;
      const got = "bytes that are not, on this line or behind it; 'iconv -f LATIN1 -t UTF-8' makes them so";
      throw rowError(name, { file, line: parser.line }, { expected: "UTF-8 text", got });
    }
  };
  for await (const piece of pieces) yield* parser.take(decode(piece));
  yield* parser.take(decode());
  yield* parser.end((line) => {
    const expected = "a quote that ends the cell";
    return rowError(name, { file, line }, { expected, got: "the end of the file: a quote in a cell is doubled" });
  });
}

class CsvParser {
  /** The line that is read, from 1. */
  line = 1;
  #recordLine = 1;
  #cells: { text: string; isBare: boolean }[] = [];
  #text = "";
  #isBare = true;
  #length = 0;
  /** Before a cell, in one, in quotes, or behind a quote that ends the cell or is the first of two. */
  #state: "begin" | "bare" | "quoted" | "quote" = "begin";
  #wasReturn = false;

  *take(text: string): Generator<CsvRecord> {
    let from = 0;
    const keep = (to: number): void => {
      // Of a record that is too long its length alone is kept.
      if (this.#length <= MAX_ROW_BYTES) this.#text += text.slice(from, to);
      this.#length += to - from;
    };
    for (let i = 0; i < text.length; i++) {
      const char = text[i];
      const isSecondHalf = char === "\n" && this.#wasReturn; // of \r\n
      this.#wasReturn = false;
      if (isSecondHalf) {
        from = i + 1;
        continue;
      }
      if (this.#state === "quoted") {
        if (char === "\n") this.line++;
        if (char !== '"') continue;
        keep(i);
        from = i + 1;
        this.#state = "quote";
      } else if (char === '"' && this.#state === "quote") {
        from = i; // the second of two quotes stands for one
        this.#state = "quoted";
      } else if (char === '"' && this.#state === "begin") {
        from = i + 1;
        this.#state = "quoted";
        this.#isBare = false;
      } else if (char === "," || char === "\n" || char === "\r") {
        keep(i);
        this.#endCell();
        from = i + 1;
        if (char === ",") continue;
        this.#wasReturn = char === "\r";
        yield this.#record();
        this.line++;
        this.#recordLine = this.line;
      } else if (this.#state === "begin") {
        from = i;
        this.#state = "bare";
      }
    }
    keep(text.length);
  }

  *end(unclosed: (line: number) => ConfigError): Generator<CsvRecord> {
    if (this.#state === "quoted") throw unclosed(this.#recordLine);
    if (this.#cells.length === 0 && this.#text === "" && this.#state === "begin") return;
    this.#endCell();
    yield this.#record();
  }

  #endCell(): void {
    this.#cells.push({ text: this.#text, isBare: this.#isBare });
    this.#text = "";
    this.#isBare = true;
    this.#state = "begin";
  }

  #record(): CsvRecord {
    const record = { line: this.#recordLine, cells: this.#cells, length: this.#length };
    this.#cells = [];
    this.#length = 0;
    return record;
  }
}
