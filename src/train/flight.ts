/**
 * Where the last calls of all ranks go when a run stops.
 *
 * @module
 */
import type { FlightRecord } from "../comm/flight_record.ts";
import { processEnvironment } from "../runtime/env.ts";
import { replaceFile, temporaryPath } from "../runtime/files.ts";
import { processId } from "../runtime/processes.ts";

/**
 * Writes a record as JSON.
 *
 * @param reason why the ranks stopped
 * @returns a line that says where the record lies, or why there is none
 */
export function writeFlightRecord(record: FlightRecord, reason: string): string {
  try {
    const name = `fullyshard-flight-rank${record.rank}-${processId()}.json`;
    const directory = processEnvironment().text("FULLYSHARD_FLIGHT_DIRECTORY");
    const file = directory === undefined ? temporaryPath(name) : `${directory}/${name}`;
    replaceFile(file, `${JSON.stringify({ reason, ...record })}\n`);
    return `The last calls of all ranks are in '${file}'`;
  } catch (error) {
    // The failure that stopped the run is the one to report.
    return `The last calls of all ranks are not kept: ${error instanceof Error ? error.message : String(error)}`;
  }
}
