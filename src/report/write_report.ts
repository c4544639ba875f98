/**
 * Writes reports: of one run, or of several runs laid over each other.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { replaceFile } from "../runtime/files.ts";
import { readRun } from "./read_run.ts";
import { MOST_RUNS, renderReport } from "./render.ts";

/**
 * Reads folders of runs and writes a page, aside first.
 *
 * @param folders of runs, at least one
 * @param file the page
 * @throws {FileError} if a folder holds no run, or the page cannot be written
 * @throws {ArgumentError} for more runs than can be told apart
 */
export async function writeReport(folders: readonly string[], file: string): Promise<void> {
  if (folders.length > MOST_RUNS) {
    throw new ArgumentError(`Cannot lay ${folders.length} runs over each other: give at most ${MOST_RUNS}`);
  }
  replaceFile(file, await renderReport(folders.map((folder) => readRun(folder))));
}
