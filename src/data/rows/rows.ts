/**
 * Rows of files: JSON lines, JSON arrays, CSV, and gzip of these, in an order that every rank sees alike.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import { openReadable } from "../../runtime/files.ts";
import { gunzip, isGzipFile } from "../../runtime/gzip.ts";
import { csvRows } from "./csv.ts";
import { jsonArray } from "./json_array.ts";
import { jsonLines } from "./json_lines.ts";
import type { BadRow, Row } from "./row.ts";

/** The form in which a file holds rows. */
export type RowFormat = "json-lines" | "json-array" | "csv";

/** The endings of names of files that hold rows, before an ending of gzip. */
const ENDINGS: readonly (readonly [RegExp, RowFormat | "json"])[] = [
  [/\.(?:jsonl|ndjson)$/i, "json-lines"],
  [/\.json$/i, "json"],
  [/\.csv$/i, "csv"],
];

/** True if a file may hold rows, by its name. */
export function mayHoldRows(file: string): boolean {
  return endingOf(file) !== undefined;
}

function endingOf(file: string): RowFormat | "json" | undefined {
  const name = file.replace(/\.gz$/i, "");
  return ENDINGS.find(([ending]) => ending.test(name))?.[1];
}

/**
 * The form in which a file holds rows, by its name and, of .json, by its first character: an array, or one object a line.
 *
 * @throws {FileError} if it cannot be read
 */
export async function rowFormatOf(file: string): Promise<RowFormat | undefined> {
  const ending = endingOf(file);
  if (ending !== "json") return ending;
  for await (const piece of piecesOf(file)) {
    const first = new TextDecoder().decode(piece.subarray(0, 4096)).trimStart()[0];
    if (first !== undefined) return first === "[" ? "json-array" : "json-lines";
  }
  return "json-lines";
}

/** The rows of a file, from its beginning; see {@link rowFormatOf} for what is thrown. @param name what errors call the data */
export async function* rowsOf(file: string, name: string): AsyncGenerator<Row | BadRow> {
  const format = await rowFormatOf(file);
  if (format === undefined) throw new InternalError(`'${file}' holds no rows`);
  const pieces = piecesOf(file);
  if (format === "json-lines") yield* jsonLines(file, pieces);
  else if (format === "csv") yield* csvRows(file, pieces, name);
  else yield* jsonArray(file, pieces, name);
}

/** Bytes of a file, unpacked where gzip has packed it; each piece is valid until the next. */
async function* piecesOf(file: string): AsyncGenerator<Uint8Array> {
  if (isGzipFile(file)) return yield* gunzip(file);
  using reader = openReadable(file);
  yield* reader.pieces(0, reader.byteLength);
}
