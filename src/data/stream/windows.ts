/**
 * Windows of data: parts of files that are tokenized one at a time, so that no more than some windows are ever in memory.
 *
 * Note [Windows]: files that can be read from any place are divided by their bytes, Parquet by rows of its row groups. A window of lines
 * begins with the first line that begins in it. A text of one document is cut at the ends of lines. Small files share a window.
 *
 * @module
 */
import { at } from "../../at.ts";
import { openReadable, type ReadableFile } from "../../runtime/files.ts";
import { packerOf } from "../../runtime/unpack.ts";
import { parquetParts } from "../rows/parquet.ts";
import { rowFormatOf } from "../rows/rows.ts";

/** The form in which a part of a file is read. */
export type PartForm = "lines" | "text" | "parquet";

/** A part of a file: of lines and text its bytes, of Parquet its rows. */
export interface WindowPart {
  readonly file: string;
  readonly form: PartForm;
  /** First byte or row. */
  readonly start: number;
  /** The byte or row behind the last. */
  readonly end: number;
}

/** Parts of files that are tokenized at once. */
export type StreamWindow = readonly WindowPart[];

/** Options for dividing files. */
export interface WindowOptions {
  /** The columns that are read, of formats that keep columns apart. */
  readonly columns: readonly string[];
  /** Files that hold one document of text each. */
  readonly isText: (file: string) => boolean;
  /** Bytes of a window, about. */
  readonly windowBytes: number;
}

/** Largest row group of Parquet without an index of its pages that is read in parts: each part decodes all before it. */
const GROUP_BYTES = 2 ** 24;

/**
 * Divides files into windows; undefined where some file can only be read from its beginning: packed ones, CSV, JSON arrays, and Parquet with
 * large row groups that do not say where their pages begin.
 *
 * @throws {FileError} if a file cannot be read
 */
export async function planWindows(
  files: readonly string[],
  options: WindowOptions,
): Promise<readonly StreamWindow[] | undefined> {
  const { windowBytes } = options;
  const windows: StreamWindow[] = [];
  let begun: WindowPart[] = [];
  let begunBytes = 0;
  for (const file of files) {
    const parts = await partsOf(file, options);
    if (parts === undefined) return undefined;
    for (const { bytes, ...part } of parts) {
      begun.push(part);
      begunBytes += bytes;
      if (begunBytes < windowBytes) continue;
      windows.push(begun);
      [begun, begunBytes] = [[], 0];
    }
  }
  if (begun.length > 0) windows.push(begun);
  return windows;
}

type SizedPart = WindowPart & { readonly bytes: number };

async function partsOf(
  file: string,
  { columns, isText, windowBytes }: WindowOptions,
): Promise<readonly SizedPart[] | undefined> {
  if (packerOf(file) !== undefined) return undefined;
  const form: PartForm | undefined = isText(file) ? "text" : await rowFormOf(file);
  if (form === undefined) return undefined;
  if (form === "parquet") {
    const parts = await parquetParts(file, columns, { partBytes: windowBytes, mostBytes: GROUP_BYTES });
    return parts?.map((part) => ({ file, form, ...part }));
  }
  using reader = openReadable(file);
  const { byteLength } = reader;
  const count = Math.max(1, Math.round(byteLength / windowBytes));
  const borders = Array.from({ length: count + 1 }, (_, i) => Math.floor(byteLength / count * i));
  return Array.from({ length: count }, (_, i) => {
    const [start, end] = [at(borders, i, "border"), at(borders, i + 1, "border")];
    return { ...{ file, form, start, end }, bytes: end - start };
  });
}

async function rowFormOf(file: string): Promise<"lines" | "parquet" | undefined> {
  const format = await rowFormatOf(file);
  return format === "json-lines" ? "lines" : format === "parquet" ? "parquet" : undefined;
}

const NEW_LINE = 10;
const BLANK = 32;
/** Bytes in which an end of a line is looked for in a text; a longer line is cut at a blank, or at a character. */
const MOST_LINE_BYTES = 2 ** 16;

/** The bytes of a part of lines or text: it begins and ends where a line does. */
export function bytesOfPart(reader: ReadableFile, { form, start, end }: WindowPart): readonly [number, number] {
  const border = form === "lines" ? lineFrom : textBorder;
  return [border(reader, start), border(reader, end)];
}

/** The first byte of the first line that begins at a place or behind it. */
function lineFrom(reader: ReadableFile, place: number): number {
  if (place === 0 || place >= reader.byteLength) return place;
  let read = place - 1;
  for (const piece of reader.pieces(read, reader.byteLength - read)) {
    const found = piece.indexOf(NEW_LINE);
    if (found >= 0) return read + found + 1;
    read += piece.length;
  }
  return reader.byteLength;
}

/** The place of a text that is cut near a place. */
function textBorder(reader: ReadableFile, place: number): number {
  if (place === 0 || place >= reader.byteLength) return place;
  const bytes = new Uint8Array(Math.min(MOST_LINE_BYTES, reader.byteLength - place + 1));
  reader.read(place - 1, bytes);
  return place - 1 + cutOf(bytes);
}

/** The number of bytes up to the first end of a line, else to the first blank, else to the second character. */
export function cutOf(bytes: Uint8Array): number {
  for (const mark of [NEW_LINE, BLANK]) {
    const found = bytes.indexOf(mark);
    // A blank belongs to the word behind it, as tokenizers have it.
    if (found >= 0 && (mark === NEW_LINE || found > 0)) return mark === NEW_LINE ? found + 1 : found;
  }
  const next = bytes.findIndex((byte, i) => i > 0 && (byte & 0xc0) !== 0x80);
  return next < 0 ? bytes.length : next;
}

/** The number of lines of a file before a byte. */
export function linesBefore(file: string, byte: number): number {
  using reader = openReadable(file);
  let lines = 0;
  for (const piece of reader.pieces(0, byte)) {
    for (let end = piece.indexOf(NEW_LINE); end >= 0; end = piece.indexOf(NEW_LINE, end + 1)) lines++;
  }
  return lines;
}
