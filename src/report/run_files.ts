/**
 * Names of the files that a run leaves in its folder, and that a report reads. Nothing else is read.
 *
 * @module
 */

/** Name of the metrics' file in the folder of a run: an object a step. */
export const METRICS_FILE = "metrics.jsonl";

/** Name of the run record: settings, environment, sharding and predicted memory. */
export const RUN_FILE = "run.json";

/** Name of the file of events: warnings, saves, samples and the end of the run. */
export const EVENTS_FILE = "events.jsonl";

/** Name of the report. */
export const REPORT_FILE = "report.html";
