/**
 * Writing of all ranks' last calls to a file when a run stops.
 *
 * @module
 */
import type { FlightRecord } from "../comm/flight_record.ts";
import { METRICS_FILE } from "../report/run_files.ts";
import { processEnvironment } from "../runtime/env.ts";
import { pathExists, replaceFile, temporaryPath } from "../runtime/files.ts";
import { processId } from "../runtime/processes.ts";

/**
 * Writes a record as JSON, in the first of these places that exists:
 * 1. the folder of `FULLYSHARD_FLIGHT_DIRECTORY`;
 * 2. the run's output folder, once it has metrics: `flight-rank0.json`, which replaces an earlier one;
 * 3. the temporary directory.
 *
 * @param reason the reason why the ranks stopped
 * @param out the run's output folder
 * @returns a line with the path of the file, or with the reason why there is none
 */
export function writeFlightRecord(record: FlightRecord, reason: string, out?: string): string {
  try {
    const file = fileOf(record.rank, out);
    replaceFile(file, `${JSON.stringify({ reason, ...record })}\n`);
    return `The last calls of all ranks are in '${file}'`;
  } catch (error) {
    // The failure that stopped the run is the one to report.
    return `The last calls of all ranks are not kept: ${error instanceof Error ? error.message : String(error)}`;
  }
}

function fileOf(rank: number, out: string | undefined): string {
  const name = `fullyshard-flight-rank${rank}-${processId()}.json`;
  const directory = processEnvironment().text("FULLYSHARD_FLIGHT_DIRECTORY");
  if (directory !== undefined) return `${directory}/${name}`;
  // Before its first step a run leaves nothing in its folder.
  const hasBegun = out !== undefined && pathExists(`${out}/${METRICS_FILE}`);
  return hasBegun ? `${out}/flight-rank${rank}.json` : temporaryPath(name);
}
