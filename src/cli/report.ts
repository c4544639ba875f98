/**
 * `fullyshard report`: makes a page of a run's numbers from its folder, or of several runs laid over each other.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { ConfigError } from "../errors.ts";
import { MOST_RUNS } from "../report/render.ts";
import { REPORT_FILE } from "../report/run_files.ts";
import { writeReport } from "../report/write_report.ts";
import { terminal } from "../runtime/terminal.ts";
import { path } from "../train/config_values.ts";
import { shown } from "../words.ts";
import { placesKey } from "./places.ts";

const SECTIONS = [section(
  "report",
  z.strictObject({
    places: placesKey.describe("Folders of runs, as arguments or by --places"),
    out: path.optional().describe(`File to write (default: ${REPORT_FILE} in the run's folder; of several runs, here)`),
  }),
)] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Makes a report.
 *
 * @param argv the arguments after `report`
 * @returns the exit code
 * @throws {FileError} if a folder holds no run, or the page cannot be written
 * @throws {ConfigError} for arguments that are wrong
 */
export async function report(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    const usage = "fullyshard report <run> [more runs] [flags]";
    process.stdout.write(`${await configHelp(SECTIONS, usage, terminal("stdout").columns())}\n`);
    return 0;
  }
  const { places, out } = await resolveConfig(SECTIONS, { argv, positional: "places" });
  const [first] = places;
  if (first === undefined || places.length > MOST_RUNS) {
    const got = first === undefined ? "nothing" : String(places.length);
    throw new ConfigError([{ path: "arguments", expected: `1 to ${MOST_RUNS} folders of runs`, got }]);
  }
  const file = out ?? (places.length === 1 ? `${first.replace(/\/+$/, "")}/${REPORT_FILE}` : REPORT_FILE);
  await writeReport(places, file);
  process.stdout.write(`${shown(`Wrote '${file}'`)}\n`);
  return 0;
}
