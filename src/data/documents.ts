/**
 * Documents of text files and JSONL files, in an order that every rank sees alike. Tokens are left to `packing.ts`.
 *
 * Invariant: a document is valid Unicode text or an error that names the file and the place; nothing is replaced or
 * skipped, other than empty documents and blank lines of JSONL.
 *
 * @module
 */
import { ConfigError } from "../errors.ts";
import { sha256 } from "../runtime/checksum.ts";
import { fileByteLength, openReadable, readBytes } from "../runtime/files.ts";
import { findFiles, type SkippedFiles } from "./find_files.ts";

/** One document. */
export interface TextDocument {
  /** The document's text, not empty. */
  readonly text: string;
  /** The file that holds it. */
  readonly file: string;
  /** The line of the file that holds the document, from 1; `undefined` if the whole file does. */
  readonly line: number | undefined;
  /** Bytes of all files up to the end of this document: how far reading has come. */
  readonly bytesRead: number;
}

/** Documents in a fixed order. */
export interface TextSource {
  /** The files of the documents, for messages. */
  readonly files: readonly string[];
  /** What was left out of directories, where any were searched. */
  readonly skipped?: SkippedFiles;
  /** Bytes of all of it. */
  readonly byteLength: number;
  /** Each document once. */
  documents(): AsyncIterable<TextDocument>;
  /** SHA-256 of the contents, hexadecimal: equal for equal documents in equal order, wherever they lie. */
  fingerprint(): string;
}

/** How files are read. */
export interface TextOptions {
  /** The key of a JSONL line that holds the text. @default `text` */
  readonly field?: string | undefined;
}

/**
 * Opens text files.
 *
 * @param inputs files, directories or patterns; see {@link findFiles}. `.jsonl` and `.ndjson` files hold one JSON object a
 *   line, any other file is one document of UTF-8 text
 * @throws {ConfigError} naming every input that matches no file
 * @example
 * ```ts
 * import { openText } from "fullyshard/data";
 * const source = openText(["README.md"]);
 * for await (const { text } of source.documents()) if (text.length === 0) throw new Error("empty");
 * ```
 */
export function openText(inputs: readonly string[], { field = "text" }: TextOptions = {}): TextSource {
  const { files, skipped } = findFiles(inputs);
  return {
    files,
    skipped,
    byteLength: files.reduce((sum, file) => sum + fileByteLength(file), 0),
    documents: () => documentsOf(files, field),
    fingerprint: () => sha256(contentsOf(files, field)),
  };
}

async function* documentsOf(files: readonly string[], field: string): AsyncIterable<TextDocument> {
  let before = 0;
  for (const file of files) {
    if (isJsonLines(file)) {
      for (const { bytes, line, end } of linesOf(file)) {
        const text = textOf(bytes, file, line, field);
        if (text !== "") yield { text, file, line, bytesRead: before + end };
      }
      before += fileByteLength(file);
    } else {
      const bytes = await readBytes(file);
      before += bytes.length;
      const text = decodeText(bytes, file, undefined);
      if (text !== "") yield { text, file, line: undefined, bytesRead: before };
    }
  }
}

/** What makes one list of documents another. */
function* contentsOf(files: readonly string[], field: string): Iterable<string | Uint8Array> {
  for (const file of files) {
    using reader = openReadable(file);
    // The length keeps files apart; the kind counts because it decides what a document is.
    yield `${isJsonLines(file) ? `jsonl ${JSON.stringify(field)}` : "text"} ${reader.byteLength}\n`;
    yield* reader.pieces(0, reader.byteLength);
  }
}

/** The text of a JSONL line; empty for a blank one. */
function textOf(bytes: Uint8Array, file: string, line: number, field: string): string {
  const json = decodeText(bytes, file, line);
  if (json.trim() === "") return "";
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (cause) {
    const detail = cause instanceof Error ? cause.message : String(cause);
    throw refusal(`${file}:${line}`, "one JSON object a line", detail);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw refusal(`${file}:${line}`, "one JSON object a line", json.trim().slice(0, 60));
  }
  const text: unknown = Object.getOwnPropertyDescriptor(value, field)?.value;
  if (typeof text === "string") return text;
  const keys = Object.keys(value).slice(0, 20).map((key) => JSON.stringify(key)).join(", ");
  const got = text === undefined ? `an object with the keys ${keys || "(none)"}` : JSON.stringify(text).slice(0, 60);
  throw refusal(`${file}:${line}`, `a string under "${field}"`, got);
}

function isJsonLines(file: string): boolean {
  return /\.(jsonl|ndjson)$/i.test(file);
}

/** Lines of a file as bytes, read in chunks; a last line without an end counts. Bytes are valid until the next line. */
function* linesOf(file: string): Iterable<{ bytes: Uint8Array; line: number; end: number }> {
  using reader = openReadable(file);
  let rest = new Uint8Array(0);
  let line = 0;
  let read = 0;
  for (const piece of reader.pieces(0, reader.byteLength)) {
    const bytes = new Uint8Array(rest.length + piece.length);
    bytes.set(rest);
    bytes.set(piece, rest.length);
    const base = read - rest.length;
    read += piece.length;
    let start = 0;
    // What is left over has no line end, so the search goes on behind it.
    for (let end = bytes.indexOf(10, rest.length); end >= 0; end = bytes.indexOf(10, start)) {
      yield { bytes: bytes.subarray(start, end), line: ++line, end: base + end + 1 };
      start = end + 1;
    }
    rest = bytes.subarray(start);
  }
  if (rest.length > 0) yield { bytes: rest, line: ++line, end: reader.byteLength };
}

/** UTF-8 text without a byte order mark. */
function decodeText(bytes: Uint8Array, file: string, line: number | undefined): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (cause) {
    if (!(cause instanceof TypeError)) throw cause;
    const at = validLength(bytes);
    const byte = bytes[at];
    const got = byte === undefined ? "the end inside a character" : `byte 0x${byte.toString(16).padStart(2, "0")}`;
    throw refusal(line === undefined ? file : `${file}:${line}`, "UTF-8 text", `${got} at byte ${at}`);
  }
}

/** Bytes of whole valid characters before the first that are not: by halving, as validity of a prefix is monotonic. */
function validLength(bytes: Uint8Array): number {
  let valid = 0;
  let invalid = bytes.length + 1;
  while (invalid - valid > 1) {
    const middle = Math.floor((valid + invalid) / 2);
    try {
      new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(0, middle), { stream: true });
      valid = middle;
    } catch {
      invalid = middle;
    }
  }
  // The byte that broke a character is `valid`; report that one, or the end if the character was cut off.
  return valid;
}

function refusal(where: string, expected: string, got: string): ConfigError {
  return new ConfigError([{ path: "data", expected, got, where }]);
}
