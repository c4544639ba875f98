/**
 * Rows of files: JSON lines, JSON arrays, CSV, what gzip and zstd make of these, and Parquet, in an order that every rank sees
 * alike.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import { PACKED_ENDING, unpackedPieces } from "../../runtime/unpack.ts";
import { csvRows } from "./csv.ts";
import { jsonArray } from "./json_array.ts";
import { jsonLines } from "./json_lines.ts";
import { parquetRows } from "./parquet.ts";
import type { BadRow, Row } from "./row.ts";

/** The form in which a file holds rows. */
export type RowFormat = "json-lines" | "json-array" | "csv" | "parquet";

/** The endings of names of files that hold rows, before an ending of gzip or zstd. */
const ENDINGS: readonly (readonly [RegExp, RowFormat | "json"])[] = [
  [/\.(?:jsonl|ndjson)$/i, "json-lines"],
  [/\.json$/i, "json"],
  [/\.csv$/i, "csv"],
  [/\.(?:parquet|pq)$/i, "parquet"],
];

/** True if a file may hold rows, by its name. */
export function mayHoldRows(file: string): boolean {
  return endingOf(file) !== undefined;
}

/** The form of rows that a file's name tells; `json` is an array or lines. */
export function endingOf(file: string): RowFormat | "json" | undefined {
  const name = file.replace(PACKED_ENDING, "");
  const found = ENDINGS.find(([ending]) => ending.test(name))?.[1];
  // Parquet is read from its end, and its pages are packed already.
  return found === "parquet" && name !== file ? undefined : found;
}

/**
 * The form in which a file holds rows, by its name and, of .json, by its first character: an array, or one object a line.
 *
 * @throws {FileError} if it cannot be read
 */
export async function rowFormatOf(file: string): Promise<RowFormat | undefined> {
  const ending = endingOf(file);
  if (ending !== "json") return ending;
  for await (const piece of unpackedPieces(file)) {
    const first = new TextDecoder().decode(piece.subarray(0, 4096)).trimStart()[0];
    if (first !== undefined) return first === "[" ? "json-array" : "json-lines";
  }
  return "json-lines";
}

/**
 * The rows of a file, from its beginning; see {@link rowFormatOf} for what is thrown.
 *
 * @param name what errors call the data
 * @param columns the columns that are read, of formats that keep columns apart. @default all
 */
export async function* rowsOf(file: string, name: string, columns?: readonly string[]): AsyncGenerator<Row | BadRow> {
  const format = await rowFormatOf(file);
  if (format === undefined) throw new InternalError(`'${file}' holds no rows`);
  if (format === "parquet") return yield* parquetRows(file, columns);
  const pieces = unpackedPieces(file);
  if (format === "json-lines") yield* jsonLines(file, pieces);
  else if (format === "csv") yield* csvRows(file, pieces, name);
  else yield* jsonArray(file, pieces, name);
}
