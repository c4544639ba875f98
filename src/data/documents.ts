/**
 * Documents of text files and JSONL files, in an order that every rank sees alike. Tokens are left to `token_stream.ts`.
 *
 * Invariant: a document is valid Unicode text or an error that names the file and the place; nothing is replaced or
 * skipped, other than empty documents, blank lines of JSONL and a byte order mark at the beginning of a file.
 *
 * @module
 */
import { at } from "../at.ts";
import { ConfigError } from "../errors.ts";
import { sha256 } from "../runtime/checksum.ts";
import { fileByteLength, openReadable, readBytes } from "../runtime/files.ts";
import { packerOf, unpackedPieces } from "../runtime/unpack.ts";
import { findFiles, type FoundFiles, type SkippedFiles } from "./find_files.ts";
import { isJsonLines } from "./formats.ts";
import { COLUMNS_REMEDY, rowError } from "./rows/row.ts";
import { endingOf, rowsOf } from "./rows/rows.ts";
import { decodeUtf8, notUtf8 } from "./rows/utf8.ts";

/** One document. */
export interface TextDocument {
  /** The document's text, not empty. */
  readonly text: string;
  /** The file that holds it. */
  readonly file: string;
  /** The line of the file that holds the document, from 1; `undefined` if the full file does. */
  readonly line: number | undefined;
  /** Bytes of all files up to the end of this document: how far reading has come. */
  readonly bytesRead: number;
}

/** Documents in a fixed order. */
export interface TextSource {
  /** The files of the documents, for messages. */
  readonly files: readonly string[];
  /** The files that were left out of directories, if any directory was searched. */
  readonly skipped?: SkippedFiles;
  /** Bytes of all of it. */
  readonly byteLength: number;
  /** Each document once. */
  documents(): AsyncIterable<TextDocument>;
  /** SHA-256 of the contents, hexadecimal: equal for equal documents in equal order, wherever they lie. Reads all of them. */
  fingerprint(): string;
  /**
   * Names everything that decides how the files are used. With it {@link tokenCache} keeps the fingerprint, and knows by sizes,
   * times and some blocks of the files that it is still right. @default all files are read at each start
   */
  readonly meaning?: string;
}

/** Documents of files that were found. */
export interface DocumentSource extends TextSource {
  /** True for a file that is one document. */
  readonly isText: (file: string) => boolean;
  /** Refuses files that are too long for one document. @throws {ConfigError} naming one */
  requireDocuments(): void;
}

/** Options for reading files. */
export interface TextOptions {
  /** The key of a JSONL line that holds the text. @default `text` */
  readonly field?: string | undefined;
  /** The name of the list of files in errors. @default `data` */
  readonly name?: string | undefined;
}

/** Bytes of the longest document: V8 has no longer strings, and a text of that size is no sample of anything. */
const MAX_DOCUMENT_BYTES = 2 ** 29 - 64;

/**
 * Opens text files.
 *
 * @param inputs files, directories or patterns; see {@link findFiles}. `.jsonl` and `.ndjson` files hold one JSON object a
 *   line, any other file is one document of UTF-8 text
 * @throws {ConfigError} naming every input that matches no file, every file of a format that is not read (such as CSV, a JSON
 *   array, gzip or Parquet) with what makes text of it, and every text file that is too long for one document
 * @throws {FileError} if a file that is named cannot be read
 * @example
 * ```ts
 * import { openText } from "fullyshard/data";
 * const source = openText(["README.md"]);
 * for await (const { text } of source.documents()) if (text.length === 0) throw new Error("empty");
 * ```
 */
export function openText(inputs: readonly string[], { field = "text", name = "data" }: TextOptions = {}): TextSource {
  const source = documentSource(findFiles(inputs, { field, name }), { field, name, tables: new Set() });
  source.requireDocuments();
  return source;
}

/** Options for documents of files that were found. */
export interface DocumentOptions {
  /** The key of rows that holds the text. */
  readonly field: string;
  /** The name of the list of files in errors. */
  readonly name: string;
  /** Files that hold rows of another form than one JSON object a line of plain text. */
  readonly tables: ReadonlySet<string>;
}

/**
 * The documents of files that were found: rows of tables, lines of `.jsonl` files, and any other file, unpacked where it is packed.
 */
export function documentSource({ files, skipped }: FoundFiles, options: DocumentOptions): DocumentSource {
  const { field, name, tables } = options;
  const lengths = files.map(fileByteLength);
  const refuse: RefuseText = (where, expected, got) => new ConfigError([{ path: name, expected, got, where }]);
  const isText = (file: string): boolean => !isJsonLines(file) && !tables.has(file);
  const requireDocuments = (): void => {
    for (const [i, byteLength] of lengths.entries()) {
      const file = at(files, i, "file");
      if (isText(file) && byteLength > MAX_DOCUMENT_BYTES) throw tooLong(refuse, file, byteLength);
    }
  };
  return {
    isText,
    requireDocuments,
    files,
    skipped,
    byteLength: lengths.reduce((sum, byteLength) => sum + byteLength, 0),
    documents: () => documentsOf(files, options, refuse),
    fingerprint: () => sha256(contentsOf(files, options)),
    meaning: JSON.stringify(["text", field]),
  };
}

/** Makes the error for a place in a file. */
type RefuseText = (where: string, expected: string, got: string) => ConfigError;

async function* documentsOf(
  files: readonly string[],
  { field, name, tables }: DocumentOptions,
  refuse: RefuseText,
): AsyncIterable<TextDocument> {
  let before = 0;
  for (const file of files) {
    if (tables.has(file)) {
      for await (const row of rowsOf(file, name, [field])) {
        if ("problem" in row) throw rowError(name, row, row.problem);
        const text = fieldOf(row.value, `${file}:${row.line}`, field, refuse);
        if (text !== "") yield { text, file, line: row.line, bytesRead: before };
      }
      before += fileByteLength(file);
    } else if (isJsonLines(file)) {
      for (const { bytes, line, end } of linesOf(file, refuse)) {
        const text = textOf(bytes, `${file}:${line}`, field, refuse);
        if (text !== "") yield { text, file, line, bytesRead: before + end };
      }
      before += fileByteLength(file);
    } else {
      const bytes = packerOf(file) === undefined ? await readBytes(file) : await unpackedBytes(file, refuse);
      before += fileByteLength(file);
      const text = decodeText(bytes, file, refuse);
      const zero = text.indexOf("\0");
      if (zero >= 0) throw refuse(file, "UTF-8 text", `a zero byte at byte ${bytes.indexOf(0)}, which no text has`);
      if (text !== "") yield { text, file, line: undefined, bytesRead: before };
    }
  }
}

/** The contents that a list of documents is identified by. */
function* contentsOf(files: readonly string[], { field, tables }: DocumentOptions): Iterable<string | Uint8Array> {
  for (const file of files) {
    using reader = openReadable(file);
    // The length keeps files apart; the kind counts because it decides what a document is.
    const kind = isJsonLines(file) ? "jsonl" : tables.has(file) ? `rows ${endingOf(file)}` : undefined;
    yield `${kind === undefined ? "text" : `${kind} ${JSON.stringify(field)}`} ${reader.byteLength}\n`;
    yield* reader.pieces(0, reader.byteLength);
  }
}

/** The text of a JSONL line; empty for a blank one. */
function textOf(bytes: Uint8Array, where: string, field: string, refuse: RefuseText): string {
  const json = decodeText(bytes, where, refuse);
  if (json.trim() === "") return "";
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (cause) {
    const detail = cause instanceof Error ? cause.message : String(cause);
    throw refuse(where, "one JSON object a line", detail);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw refuse(where, "one JSON object a line", json.trim().slice(0, 60));
  }
  return fieldOf(value, where, field, refuse);
}

/** The text of a row; empty for none. */
function fieldOf(value: object, where: string, field: string, refuse: RefuseText): string {
  const text: unknown = Object.getOwnPropertyDescriptor(value, field)?.value;
  if (typeof text === "string") {
    if (!text.isWellFormed()) throw refuse(where, "valid Unicode text", halfPairIn(text));
    return text;
  }
  const keys = Object.keys(value).slice(0, 20).map((key) => JSON.stringify(key)).join(", ");
  const got = text === undefined
    ? `an object with the keys ${keys || "(none)"}: ${COLUMNS_REMEDY}`
    : JSON.stringify(text).slice(0, 60);
  throw refuse(where, `a string under "${field}"`, got);
}

/** Describes the place at which a text has half of a surrogate pair: UTF-8 cannot store it, and an encoder would write U+FFFD. */
function halfPairIn(text: string): string {
  const at = text.search(/\p{Cs}/u);
  const code = text.charCodeAt(at).toString(16);
  return `half of a surrogate pair, \\u${code}, at character ${at}: the text was cut in the middle of a character`;
}

/** All bytes of a file that is packed, of one document. */
async function unpackedBytes(file: string, refuse: RefuseText): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let byteLength = 0;
  for await (const piece of unpackedPieces(file)) {
    byteLength += piece.length;
    if (byteLength > MAX_DOCUMENT_BYTES) throw tooLong(refuse, file, byteLength);
    pieces.push(piece.slice());
  }
  return concatenate(pieces, byteLength);
}

/** Lines of a file as bytes, read in chunks; a last line without an end counts. Bytes are valid until the next line. */
function* linesOf(file: string, refuse: RefuseText): Iterable<{ bytes: Uint8Array; line: number; end: number }> {
  using reader = openReadable(file);
  /** The beginning of a line whose end has not been read, in pieces. */
  let begun: Uint8Array[] = [];
  let begunBytes = 0;
  let line = 0;
  let read = 0;
  const finish = (end: Uint8Array): Uint8Array => {
    const whole = begun.length === 0 ? end : concatenate([...begun, end], begunBytes + end.length);
    [begun, begunBytes] = [[], 0];
    return whole;
  };
  for (const piece of reader.pieces(0, reader.byteLength)) {
    let start = 0;
    for (let end = piece.indexOf(10); end >= 0; end = piece.indexOf(10, start)) {
      yield { bytes: finish(piece.subarray(start, end)), line: ++line, end: read + end + 1 };
      start = end + 1;
    }
    if (start < piece.length) {
      begun.push(piece.slice(start));
      begunBytes += piece.length - start;
    }
    read += piece.length;
    if (begunBytes > MAX_DOCUMENT_BYTES) throw tooLong(refuse, `${file}:${line + 1}`, begunBytes);
  }
  if (begunBytes > 0) yield { bytes: finish(new Uint8Array(0)), line: ++line, end: reader.byteLength };
}

function concatenate(parts: readonly Uint8Array[], byteLength: number): Uint8Array {
  const whole = new Uint8Array(byteLength);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function tooLong(refuse: RefuseText, where: string, byteLength: number): ConfigError {
  const got = `${byteLength} or more: split it, or write it as JSON lines (.jsonl), one document a line`;
  return refuse(where, `at most ${MAX_DOCUMENT_BYTES} bytes of a document`, got);
}

/** UTF-8 text without a byte order mark. */
function decodeText(bytes: Uint8Array, where: string, refuse: RefuseText): string {
  const decoded = decodeUtf8(bytes);
  if ("text" in decoded) return decoded.text;
  throw refuse(where, "UTF-8 text", notUtf8(decoded));
}
