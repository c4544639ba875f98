/**
 * Reads the contents of windows: rows, and pieces of text.
 *
 * @module
 */
import { openReadable } from "../../runtime/files.ts";
import { jsonLines } from "../rows/json_lines.ts";
import { parquetRows } from "../rows/parquet.ts";
import type { BadRow, Row, RowPlace } from "../rows/row.ts";
import { decodeUtf8, notUtf8 } from "../rows/utf8.ts";
import { bytesOfPart, linesBefore, type StreamWindow, type WindowPart } from "./windows.ts";

/** A piece of a document of text. */
export interface DocumentPiece extends RowPlace {
  readonly text: string;
  /** True if the document ends with it. */
  readonly isLast: boolean;
}

/** A row, or a piece of text, or what is wrong with it. */
export type StreamItem = Row | BadRow | DocumentPiece;

/** Options for reading a window. */
export interface WindowReading {
  /** The columns that are read, of formats that keep columns apart. */
  readonly columns: readonly string[];
  /**
   * True to number lines from the beginning of their files, which reads all before the window. @default they are numbered from the
   * window's first
   */
  readonly numbersLines?: boolean;
}

/** The contents of a window. @throws {FileError} if a file cannot be read */
export async function* itemsOfWindow(window: StreamWindow, options: WindowReading): AsyncGenerator<StreamItem> {
  for (const part of window) yield* itemsOfPart(part, options);
}

async function* itemsOfPart(
  part: WindowPart,
  { columns, numbersLines = false }: WindowReading,
): AsyncGenerator<StreamItem> {
  const { file, form } = part;
  if (form === "parquet") return yield* parquetRows(file, columns, part);
  using reader = openReadable(file);
  const [start, end] = bytesOfPart(reader, part);
  if (start >= end) return;
  const before = numbersLines ? linesBefore(file, start) : 0;
  if (form === "lines") {
    for await (const row of jsonLines(file, toAsync(reader.pieces(start, end - start)))) {
      yield { ...row, line: row.line + before };
    }
    return;
  }
  const bytes = new Uint8Array(end - start);
  reader.read(start, bytes);
  yield textPiece(bytes, { file, line: before + 1 }, end === reader.byteLength);
}

/** A piece of text, or what is wrong with it. */
export function textPiece(bytes: Uint8Array, place: RowPlace, isLast: boolean): DocumentPiece | BadRow {
  const decoded = decodeUtf8(bytes);
  const refuse = (got: string): BadRow => ({ ...place, problem: { expected: "UTF-8 text", got } });
  if (!("text" in decoded)) return refuse(`${notUtf8(decoded)}, counted from this line`);
  const zero = bytes.indexOf(0);
  if (zero >= 0) return refuse(`a zero byte at byte ${zero} from this line on, which no text has`);
  return { ...place, text: decoded.text, isLast };
}

async function* toAsync<T>(values: Iterable<T>): AsyncGenerator<T> {
  yield* values;
}
