/**
 * Texts of a run in all formats: plain files, rows of tables that have a column of text, and what gzip or zstd make of these.
 *
 * @module
 */
import { type DocumentSource, documentSource } from "../documents.ts";
import { ConfigError } from "../../errors.ts";
import { describeSkipped, findFiles } from "../find_files.ts";
import { conventionOfFile, type RowOptions, takesRows } from "./open_rows.ts";

/** Names of documents that are packed. Others, such as .tar.gz, hold more than one text. */
const PACKED_TEXT = /\.(?:txt|text|md)\.(?:gz|zst|zstd)$/i;

function takes(file: string, format: string): boolean {
  return takesRows(file, format) || ((format === "gzip" || format === "zstd") && PACKED_TEXT.test(file));
}

/**
 * Opens text. Tables of a directory or a pattern that have no column of text in their first row are skipped, and named ones are
 * refused by their row when they are read.
 *
 * @param inputs files, directories or patterns
 * @throws {ConfigError} naming every input that matches no file, and every file of a format that is not read
 * @throws {FileError} if a file cannot be read
 */
export async function openDocuments(inputs: readonly string[], options: RowOptions): Promise<DocumentSource> {
  const { textField: field, name } = options;
  const formats = new Map<string, string>();
  const taken = (file: string, format: string): boolean => {
    if (!takes(file, format)) return false;
    if (!PACKED_TEXT.test(file)) formats.set(file, format);
    return true;
  };
  const found = findFiles(inputs, { field, name, takes: taken });
  const skipped = new Map(found.skipped.formats);
  for (const [file, format] of formats) {
    if (inputs.includes(file) || await conventionOfFile(file, options) === "text") continue;
    skipped.set(file, `${format} without "${field}"`);
  }
  const files = found.files.filter((file) => !skipped.has(file));
  if (files.length === 0) {
    const expected = `text, or rows with a text under "${field}"`;
    const got = `${describeSkipped({ ...found.skipped, formats: skipped })}: name the column ('--text-field')`;
    throw new ConfigError([{ path: name, expected, got }]);
  }
  return documentSource({ files, skipped: { ...found.skipped, formats: skipped } }, {
    ...{ field, name },
    tables: new Set(formats.keys()),
  });
}
