/**
 * Rows of Parquet files: a row group at a time, or a part of a large one, and of it only the columns that are read.
 *
 * Decoders are loaded when the first file of this kind is opened, as they compile WebAssembly.
 *
 * @module
 */
import type { AsyncBuffer, FileMetaData, ParquetParsers, ParquetReadOptions } from "hyparquet";
import { FileError } from "../../errors.ts";
import { isJsonObject, type JsonObject } from "../../json.ts";
import { openReadable, type ReadableFile } from "../../runtime/files.ts";
import { type BadRow, COLUMNS_REMEDY, MAX_ROW_BYTES, type Row, type RowProblem, tooLong } from "./row.ts";
import { PagedGroup } from "./parquet_pages.ts";
import { decodeUtf8, notUtf8 } from "./utf8.ts";

const MAGIC = "PAR1";
/** Unpacked bytes of columns that are decoded at once, where a row group has more. */
const PART_BYTES = 2 ** 25;

/** A cell that has no value in JSON, with the reason. */
class BadCell {
  readonly problem: RowProblem;
  constructor(problem: RowProblem) {
    this.problem = problem;
  }
}

/** Bytes as text, or the reason why they are none. A cell without a value stays without one. */
function textOf(bytes: Uint8Array | undefined): string | BadCell | undefined {
  if (!(bytes instanceof Uint8Array)) return undefined;
  if (bytes.length > MAX_ROW_BYTES) return new BadCell(tooLong(bytes.length));
  const decoded = decodeUtf8(bytes);
  return "text" in decoded ? decoded.text : new BadCell({ expected: "UTF-8 text", got: notUtf8(decoded) });
}

const PARSERS: Partial<ParquetParsers> = { stringFromBytes: textOf, jsonFromBytes: textOf };

/** Rows of a file, from `start` up to `end`, exclusive. */
export interface ParquetRange {
  readonly start: number;
  readonly end: number;
}

/**
 * Ranges of rows of about the same size, none of which is in two row groups.
 *
 * @param columns the columns whose sizes count
 * @param options `partBytes`: unpacked bytes of a range, about; `mostBytes`: those of a row group that may be divided although it does not
 * say where its pages begin
 * @returns undefined if some row group is larger than that, and does not say so
 * @throws {FileError} if the file cannot be read, is cut off or damaged
 */
export async function parquetParts(
  file: string,
  columns: readonly string[],
  { partBytes, mostBytes }: { readonly partBytes: number; readonly mostBytes: number },
): Promise<readonly (ParquetRange & { readonly bytes: number })[] | undefined> {
  using reader = openReadable(file);
  const { metadata } = await openFile(reader);
  const wanted = columnsOf(metadata).filter((column) => columns.includes(column));
  const ranges: (ParquetRange & { readonly bytes: number })[] = [];
  let before = 0;
  for (const group of metadata.row_groups) {
    const { numRows, byteLength, hasIndex } = sizesOf(group, wanted);
    if (!hasIndex && byteLength > mostBytes) return undefined;
    const parts = Math.min(numRows, Math.max(1, Math.round(byteLength / partBytes)));
    for (let i = 0; i < parts; i++) {
      const rowOf = (part: number): number => before + Math.floor(numRows / parts * part);
      ranges.push({ start: rowOf(i), end: rowOf(i + 1), bytes: byteLength / parts });
    }
    before += numRows;
  }
  return ranges;
}

/** The rows of a row group, unpacked bytes of the columns that are read, and whether the file has indexes of all columns' pages. */
function sizesOf({ columns: chunks, num_rows: count }: FileMetaData["row_groups"][number], wanted: readonly string[]) {
  const byteLength = chunks.reduce((sum, { meta_data: chunk }) => {
    const isRead = chunk?.path_in_schema.some((name, i) => i === 0 && wanted.includes(name));
    return sum + (isRead ? Number(chunk?.total_uncompressed_size) : 0);
  }, 0);
  const hasIndex = chunks.every(({ offset_index_offset: at }) => at !== undefined);
  return { numRows: Number(count), byteLength, hasIndex };
}

async function openFile(reader: ReadableFile) {
  requireEnds(reader);
  const { parquetMetadataAsync } = await import("hyparquet");
  const buffer = bufferOf(reader);
  const metadata = await decoded(
    reader.path,
    "its footer",
    () => parquetMetadataAsync(buffer, { parsers: PARSERS }),
  );
  return { buffer, metadata };
}

/**
 * The rows of a Parquet file, numbered from 1 in place of lines. Empty fields of structures are left out, as JSON lines have none:
 * Arrow gives each message of a list the fields of all of them.
 *
 * @param columns the columns that are read, as far as the file has them. @default all
 * @param range the rows that are read. @default all
 * @param partBytes unpacked bytes of columns that are decoded at once, about, where a row group has more. @default 32 MiB
 * @throws {FileError} if the file cannot be read, is cut off or damaged, or has a page of more than 1 GiB in such a row group
 */
export async function* parquetRows(
  file: string,
  columns?: readonly string[],
  range: ParquetRange = { start: 0, end: Infinity },
  partBytes: number = PART_BYTES,
): AsyncGenerator<Row | BadRow> {
  using reader = openReadable(file);
  const { buffer, metadata } = await openFile(reader);
  const { parquetReadObjects, parquetSchema } = await import("hyparquet");
  const { parquetHeader: readHeader } = await import("hyparquet/src/column.js");
  const { compressors } = await import("hyparquet-compressors");
  const all = columnsOf(metadata);
  const wanted = columns === undefined ? [...all] : all.filter((column) => columns.includes(column));
  if (wanted.length === 0) {
    const list = all.slice(0, 20).map((column) => JSON.stringify(column)).join(", ");
    const expected = `one of the columns ${(columns ?? []).map((column) => JSON.stringify(column)).join(", ")}`;
    const got = `${list || "no column"}: ${COLUMNS_REMEDY}`;
    yield { file, line: 1, problem: { expected, got } };
    return;
  }
  const options: Omit<ParquetReadOptions, "onComplete" | "rowFormat" | "file" | "metadata"> = {
    ...{ columns: wanted, compressors, parsers: PARSERS, geoparquet: false },
  };
  let before = 0;
  for (const [number, group] of metadata.row_groups.entries()) {
    const { numRows, byteLength, hasIndex } = sizesOf(group, wanted);
    const [first, last] = [Math.max(0, range.start - before), Math.min(numRows, range.end - before)];
    const share = Math.max(0, last - first) / numRows;
    const parts = Math.max(1, Math.ceil(byteLength * share / partBytes));
    // Without an index of its pages, a part would be found by decoding all before it. Walking from header to header is cheaper.
    const source = {
      reader,
      compressors,
      readHeader,
      where: `row group ${number + 1} of ${metadata.row_groups.length}`,
    };
    const paged = hasIndex || parts === 1 ? undefined : new PagedGroup(source, group, wanted, parquetSchema(metadata));
    const step = Math.ceil((last - first) / parts);
    for (let start = first; start < last; start += step) {
      const [rowStart, rowEnd] = [before + start, before + Math.min(start + step, last)];
      const where = `${source.where}, rows ${rowStart + 1} to ${rowEnd}`;
      const rows = await decoded(file, where, async () => {
        const indexed = paged?.upTo(rowEnd - before, { metadata, number, buffer });
        return await parquetReadObjects({
          ...{ ...options, file: indexed?.buffer ?? buffer, metadata: indexed?.metadata ?? metadata, rowStart, rowEnd },
          useOffsetIndex: (hasIndex || paged !== undefined) && rowEnd - rowStart < numRows,
        });
      });
      if (rows.length !== rowEnd - rowStart) throw damaged(file, where, `${rows.length} rows are there`);
      for (const [i, row] of rows.entries()) yield { file, line: rowStart + i + 1, ...contentsOf(row) };
    }
    before += numRows;
  }
}

/** The names of a file's columns, without the names inside of them. */
function columnsOf({ schema }: FileMetaData): readonly string[] {
  const names: string[] = [];
  // Elements stand in the order of a walk, each before those inside of it; the first is the table.
  let inside = 0;
  for (const { name, num_children: children } of schema.slice(1)) {
    if (inside === 0) names.push(name);
    else inside--;
    if (children !== undefined) inside += children;
  }
  return names;
}

function contentsOf(row: JsonObject): { readonly value: JsonObject } | { readonly problem: RowProblem } {
  const budget = { bytes: 0 };
  const value = jsonOf(row, budget);
  if (value instanceof BadCell) return { problem: value.problem };
  return isJsonObject(value) ? { value } : { problem: { expected: "a row of columns", got: String(value) } };
}

/** A value as JSON has it. @param budget counts the characters of the row's texts */
function jsonOf(value: unknown, budget: { bytes: number }): unknown {
  if (value === undefined || value === null) return null;
  if (value instanceof BadCell) return value;
  if (typeof value === "string") {
    budget.bytes += value.length;
    return budget.bytes > MAX_ROW_BYTES ? new BadCell(tooLong(budget.bytes)) : value;
  }
  if (typeof value === "bigint") {
    const isExact = value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER;
    if (isExact) return Number(value);
    return new BadCell({ expected: "integers below 2^53", got: `${value}: write it as text` });
  }
  if (value instanceof Date) return value.toISOString();
  if (value instanceof Uint8Array) {
    return new BadCell({
      expected: "text, numbers, lists or structures",
      got: `${value.length} bytes of no known kind`,
    });
  }
  if (Array.isArray(value)) {
    const items = value.map((item: unknown) => jsonOf(item, budget));
    return items.find((item) => item instanceof BadCell) ?? items;
  }
  if (!isJsonObject(value)) return value;
  const fields = Object.entries(value).map(([key, field]) => [key, jsonOf(field, budget)] as const)
    .filter(([, field]) => field !== null);
  return fields.find(([, field]) => field instanceof BadCell)?.[1] ?? Object.fromEntries(fields);
}

/** Refuses a file that does not end as it began: its table of contents lies at its end. */
function requireEnds(reader: ReadableFile): void {
  const { byteLength, path } = reader;
  const end = new Uint8Array(Math.min(4, byteLength));
  reader.read(byteLength - end.length, end);
  const got = new TextDecoder("latin1").decode(end);
  if (byteLength >= 12 && got === MAGIC) return;
  const detail = `expected '${MAGIC}' as the last 4 of its ${byteLength} bytes, got ${JSON.stringify(got)}: ` +
    "the Parquet file was cut off, or is still written, so get it anew";
  throw new FileError(path, "read", detail);
}

function bufferOf(reader: ReadableFile): AsyncBuffer {
  return {
    byteLength: reader.byteLength,
    slice: (start, end = reader.byteLength) => {
      const bytes = new Uint8Array(end - start);
      reader.read(start, bytes);
      return Promise.resolve(bytes.buffer);
    },
  };
}

/** Decodes; an error in it is reported as the file's. */
async function decoded<T>(file: string, where: string, decode: () => Promise<T>): Promise<T> {
  try {
    return await decode();
  } catch (error) {
    if (error instanceof FileError) throw error;
    throw damaged(file, where, error instanceof Error ? error.message : String(error), error);
  }
}

function damaged(file: string, where: string, detail: string, cause?: unknown): FileError {
  return new FileError(file, "read", `${where}: ${detail}; the Parquet file is damaged, so get it anew`, undefined, {
    cause,
  });
}
