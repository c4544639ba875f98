/**
 * Files of chats and prompts among the inputs of a run, found and known by their first rows.
 *
 * @module
 */
import { ConfigError } from "../../errors.ts";
import { sha256 } from "../../runtime/checksum.ts";
import { fileByteLength, openReadable } from "../../runtime/files.ts";
import { columnsRead, conventionOf } from "../chat/columns.ts";
import { findFiles, type SkippedFiles } from "../find_files.ts";
import type { BadRow, Row } from "./row.ts";
import { ROW_FORMATS } from "../formats.ts";
import { mayHoldRows, rowsOf } from "./rows.ts";

/** Rows in a fixed order. */
export interface RowSource {
  /** The files of the rows, for messages. */
  readonly files: readonly string[];
  /** The files that were left out of directories. */
  readonly skipped: SkippedFiles;
  /** Bytes of the files. */
  readonly byteLength: number;
  /** Each row once; the bytes of the files before the row's file give the progress of reading. */
  rows(): AsyncIterable<(Row | BadRow) & { readonly bytesRead: number }>;
  /** SHA-256 of the files' contents, hexadecimal, wherever they lie. Reads all of them. */
  fingerprint(): string;
}

/** Options for finding files. */
export interface RowOptions {
  /** The column of rows that are text. */
  readonly textField: string;
  /** The name of the data in errors. */
  readonly name: string;
  /** The rows of preferences that all files are to hold. @default they are looked at */
  readonly preference?: keyof typeof PREFERENCES | undefined;
}

/** Rows that files of preferences are to have, as errors name them. */
const PREFERENCES = {
  pairs: 'rows with "chosen" and "rejected", as the run learns preferences',
  labels: 'rows with "prompt", "completion" and "label", as the run learns preferences',
} as const;

/** True for a file that holds rows by its name, in a format that {@link rowsOf} reads. */
export function takesRows(file: string, format: string): boolean {
  return mayHoldRows(file) && ROW_FORMATS.includes(format);
}

/**
 * Opens rows of chats, or of prompts and completions, where some file holds them; undefined where all is text.
 *
 * @param inputs files, directories or patterns
 * @throws {ConfigError} naming a file among chats that is named and holds no rows
 * @throws {FileError} if a file cannot be read
 */
export async function openRows(inputs: readonly string[], options: RowOptions): Promise<RowSource | undefined> {
  const { textField, name, preference } = options;
  const wanted = preference === undefined ? undefined : PREFERENCES[preference];
  const found = findFiles(inputs, { field: textField, name, takes: takesRows });
  const files = found.files.filter(mayHoldRows);
  if (wanted === undefined && !await hasChats(files, options)) return undefined;
  const problems = found.files.filter((file) => !files.includes(file) && inputs.includes(file)).map((file) => ({
    ...{ path: name, where: file, expected: wanted ?? "rows, as other files of the data are chats" },
    got: "a file of text: train on it in a run of its own",
  }));
  if (wanted !== undefined && problems.length === 0 && files.length === 0) {
    problems.push({ path: name, where: inputs.join(", "), expected: wanted, got: "no file of rows" });
  }
  if (problems.length > 0) throw new ConfigError(problems);
  return {
    files,
    skipped: found.skipped,
    byteLength: files.reduce((sum, file) => sum + fileByteLength(file), 0),
    rows: () => allRows(files, options),
    fingerprint: () => sha256(contentsOf(files)),
  };
}

/** True if the first row of any file is a chat, or a prompt with its completion. */
async function hasChats(files: readonly string[], { textField, name }: RowOptions): Promise<boolean> {
  for (const file of files) {
    const convention = await conventionOfFile(file, { textField, name });
    if (convention !== undefined && convention !== "text") return true;
  }
  return false;
}

/** The convention of a file's first row; undefined for none, and where that row cannot be read. */
export async function conventionOfFile(
  file: string,
  { textField, name }: RowOptions,
): Promise<ReturnType<typeof conventionOf>> {
  for await (const row of rowsOf(file, name, columnsRead(textField))) {
    return "value" in row ? conventionOf(row.value, textField) : undefined;
  }
  return undefined;
}

/** What the inputs hold whose rows are no chats: the columns of some files' first rows. */
export async function describeFirstRows(inputs: readonly string[], { textField, name }: RowOptions): Promise<string> {
  const { files } = findFiles(inputs, { field: textField, name, takes: takesRows });
  const descriptions: string[] = [];
  for (const file of files.slice(0, 3)) {
    let what = mayHoldRows(file) ? "which has no row" : "which is text: a run trains on all of it";
    for await (const row of mayHoldRows(file) ? rowsOf(file, name) : []) {
      what = describeRow(row, textField);
      break;
    }
    descriptions.push(`'${file}', ${what}`);
  }
  return descriptions.length === 0 ? "no file" : descriptions.join("; ");
}

function describeRow(row: Row | BadRow, textField: string): string {
  if ("problem" in row) {
    return `in whose first row ${row.problem.expected} is expected, and ${row.problem.got} is there`;
  }
  const columns = Object.keys(row.value).slice(0, 20).map((column) => `'${column}'`).join(", ");
  if (columns === "") return "whose first row has no columns";
  const text = textField in row.value ? `: a run takes '${textField}' for text, and trains on all of it` : "";
  return `whose first row has the columns ${columns}${text}`;
}

async function* allRows(
  files: readonly string[],
  { name, textField }: RowOptions,
): ReturnType<RowSource["rows"]> {
  let bytesRead = 0;
  const columns = columnsRead(textField);
  for (const file of files) {
    for await (const row of rowsOf(file, name, columns)) yield { ...row, bytesRead };
    bytesRead += fileByteLength(file);
  }
}

function* contentsOf(files: readonly string[]): Iterable<string | Uint8Array> {
  for (const file of files) {
    using reader = openReadable(file);
    // The length keeps files apart; the ending counts because it decides what a row is.
    yield `rows ${file.replace(/^.*?(?=(\.\w+)?(\.gz)?$)/i, "").toLowerCase()} ${reader.byteLength}\n`;
    yield* reader.pieces(0, reader.byteLength);
  }
}
