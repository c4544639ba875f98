/**
 * A row of data: one JSON object, with its place. A row that cannot be read is a row too, so that its reader
 * decides whether it ends the training or is skipped.
 *
 * @module
 */
import { ConfigError } from "../../errors.ts";
import type { JsonObject } from "../../json.ts";

/** The place at which a row begins. */
export interface RowPlace {
  readonly file: string;
  /** Line of the file, from 1, after unpacking. */
  readonly line: number;
}

/** A row that could be read. */
export interface Row extends RowPlace {
  readonly value: JsonObject;
}

/** A row that could not be read. */
export interface BadRow extends RowPlace {
  readonly problem: RowProblem;
}

/** The problem of a row that cannot be used. */
export interface RowProblem {
  readonly expected: string;
  /** The value found, and the remedy. */
  readonly got: string;
}

/** The error for a row that is not as expected. @param name what errors call the data, e.g. `data` */
export function rowError(name: string, { file, line }: RowPlace, { expected, got }: RowProblem): ConfigError {
  return new ConfigError([{ path: name, where: `${file}:${line}`, expected, got }]);
}

/** What a user can do about rows without a column that is known, as errors say it. */
export const COLUMNS_REMEDY: string = "name the column of texts ('--text-field'), or rename columns: chats are under " +
  '"messages" or "conversations", prompts under "prompt" and "completion", or "instruction" and "output"';

/** Most bytes of a row: what is longer is no sample of anything, and most often a file that is not one object a line. */
export const MAX_ROW_BYTES = 50_000_000;

/** The problem of a row that is longer than {@link MAX_ROW_BYTES}. */
export function tooLong(byteLength: number): RowProblem {
  return {
    expected: `at most ${MAX_ROW_BYTES} bytes of a row`,
    got: `${byteLength} or more: divide it, or look whether each row has a line of its own`,
  };
}
