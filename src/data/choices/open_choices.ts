/**
 * Files of multiple choice among some inputs, known by their first rows.
 *
 * @module
 */
import { ConfigError } from "../../errors.ts";
import { findFiles } from "../find_files.ts";
import { takesRows } from "../rows/open_rows.ts";
import type { BadRow, Row } from "../rows/row.ts";
import { mayHoldRows, rowsOf } from "../rows/rows.ts";
import { CHOICE_COLUMNS, CHOICES } from "./choice_row.ts";

/** Rows of multiple choice in a fixed order. */
export interface ChoiceSource {
  readonly files: readonly string[];
  /** Each row once. */
  rows(): AsyncIterable<Row | BadRow>;
}

/**
 * Opens rows of multiple choice; undefined where no file's first row has a column of choices.
 *
 * @param inputs files, directories or patterns
 * @param name what errors call the data
 * @throws {ConfigError} naming the files without choices, where other files have some
 * @throws {FileError} if a file cannot be read
 */
export async function openChoices(inputs: readonly string[], name: string): Promise<ChoiceSource | undefined> {
  const { files } = findFiles(inputs, { name, takes: takesRows });
  const others: string[] = [];
  for (const file of files) if (!mayHoldRows(file) || !await holdsChoices(file, name)) others.push(file);
  if (others.length === files.length) return undefined;
  if (others.length > 0) {
    const expected = `rows with "${CHOICES}", as other files of the data have them`;
    const got = "a file without: give it a name of its own, as in '--data text=FILE'";
    throw new ConfigError(others.map((where) => ({ path: name, where, expected, got })));
  }
  return { files, rows: () => allRows(files, name) };
}

async function holdsChoices(file: string, name: string): Promise<boolean> {
  for await (const row of rowsOf(file, name, CHOICE_COLUMNS)) {
    return "value" in row && row.value[CHOICES] !== undefined && row.value[CHOICES] !== null;
  }
  return false;
}

async function* allRows(files: readonly string[], name: string): AsyncGenerator<Row | BadRow> {
  for (const file of files) yield* rowsOf(file, name, CHOICE_COLUMNS);
}
