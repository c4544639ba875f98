/**
 * A run as its folder tells it: the record, metrics, events and traces. What is missing is named, and nothing is made up.
 *
 * @module
 */
import { FileError } from "../errors.ts";
import { absolutePath, listDirectory, pathKind, readBytesSync } from "../runtime/files.ts";
import { linesOf } from "../runtime/lines.ts";
import { parseRunEvent, type RunEvent } from "./run_event.ts";
import { EVENTS_FILE, METRICS_FILE, RUN_FILE } from "./run_files.ts";
import { parseRunRecord, type RunRecord } from "./run_record.ts";
import { type RunSeries, SeriesLines } from "./series.ts";
import { readTimeline, type Timeline, tracesIn } from "./timeline.ts";

/** Largest difference between two readings of the time at which a process began. */
const SAME_START_MS = 1000;

/** A run as its folder tells it. */
export interface RecordedRun {
  readonly name: string;
  /** The folder as it was given. */
  readonly folder: string;
  readonly record: RunRecord | undefined;
  readonly series: RunSeries;
  readonly events: readonly RunEvent[];
  readonly timeline: Timeline | undefined;
  /** Sentences about what the folder does not hold. */
  readonly missing: readonly string[];
}

/** Parts of a run to read. */
export interface ReadOptions {
  /** Reads the traces, which are large. @default true */
  readonly withTraces?: boolean;
  /** The numbers of steps, where they are known already. @default the folder's file is read */
  readonly series?: RunSeries | undefined;
}

/**
 * Reads the folder of a run.
 *
 * @throws {FileError} if there is no such folder, or it holds neither a run record nor metrics
 */
export function readRun(folder: string, { withTraces = true, series: known }: ReadOptions = {}): RecordedRun {
  const kind = pathKind(folder);
  if (kind !== "directory") {
    const found = kind === "none" ? "there is no such folder" : "it is no folder";
    throw new FileError(folder, "read the run in", `${found}: give the folder of a training's '--out'`);
  }
  const missing: string[] = [];
  const record = readRecord(folder, missing);
  const series = known ?? seriesIn(folder);
  if (series === undefined && record === undefined && pathKind(`${folder}/${RUN_FILE}`) === "none") {
    const detail = `it holds neither '${METRICS_FILE}' nor '${RUN_FILE}': give the folder of a training's '--out'`;
    throw new FileError(folder, "read the run in", detail);
  }
  if (series === undefined) missing.push(`${METRICS_FILE} is not there, so there are no numbers of steps.`);
  else if (series.badLines > 0) {
    missing.push(`${METRICS_FILE} has ${series.badLines} unreadable line(s), which are left out.`);
  }
  const lines = textIn(folder, EVENTS_FILE);
  if (lines === undefined) {
    missing.push(
      `${EVENTS_FILE} is not there, so warnings, saves, samples and measured memory by owner are not known.`,
    );
  }
  const events = (lines ?? "").split("\n").flatMap((line) => parseRunEvent(line) ?? []);
  const name = record?.name ?? absolutePath(folder).split("/").findLast((part) => part !== "") ?? folder;
  return {
    name,
    folder,
    record,
    series: series ?? new SeriesLines().series(),
    events,
    timeline: withTraces ? readTraces(folder, record, missing) : undefined,
    missing,
  };
}

function readRecord(folder: string, missing: string[]): RunRecord | undefined {
  const text = textIn(folder, RUN_FILE);
  if (text === undefined) {
    const what = "configuration, environment, sharding and predicted memory are not known";
    missing.push(`${RUN_FILE} is not there, so ${what}: the run is older than this file, or has not begun.`);
    return undefined;
  }
  const record = parseRunRecord(text);
  if (!("wrong" in record)) return record;
  missing.push(`${RUN_FILE} cannot be read: ${record.wrong}.`);
  return undefined;
}

function readTraces(folder: string, record: RunRecord | undefined, missing: string[]): Timeline | undefined {
  const place = [folder, ...listDirectory(folder).map((name) => `${folder}/${name}`)]
    .find((candidate) => !/\/checkpoint-[^/]*$/.test(candidate) && tracesIn(candidate).length > 0);
  if (place === undefined) {
    missing.push(`No trace lies in the folder: '--trace ${folder}/traces' makes one, with a timeline of a step.`);
    return undefined;
  }
  try {
    const timeline = readTimeline(place);
    if (timeline === undefined) missing.push("The trace has no finished step, so there is no timeline.");
    const isOfThisRun = timeline === undefined || record === undefined ||
      Math.abs(timeline.origin - record.origin) < SAME_START_MS;
    if (isOfThisRun) return timeline;
    missing.push(`The trace in '${place}' is of another start of the run, so there is no timeline.`);
    return undefined;
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    missing.push(`The trace cannot be read: ${error.message}`);
    return undefined;
  }
}

function seriesIn(folder: string): RunSeries | undefined {
  const path = `${folder}/${METRICS_FILE}`;
  if (pathKind(path) !== "file") return undefined;
  const series = new SeriesLines();
  for (const line of linesOf(path)) series.add(line);
  return series.series();
}

/** The text of a file; undefined if there is none. A letter that a write has cut off is replaced: the last line is not whole then. */
function textIn(folder: string, name: string): string | undefined {
  const path = `${folder}/${name}`;
  return pathKind(path) === "file" ? new TextDecoder().decode(readBytesSync(path)) : undefined;
}
