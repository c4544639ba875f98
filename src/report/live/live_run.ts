/**
 * The run of a live page: its folder, looked at again when a file has grown.
 *
 * @module
 */
import { fileByteLength, pathKind } from "../../runtime/files.ts";
import { dataOf, sectionsOf } from "../render.ts";
import { readRun, type RecordedRun } from "../read_run.ts";
import { EVENTS_FILE, METRICS_FILE, RUN_FILE } from "../run_files.ts";
import type { Timeline } from "../timeline.ts";
import { GrowingSeries } from "./growing_series.ts";

/** Milliseconds between two looks at the traces: the newest step looks much like the one before. */
const TRACES_EVERY_MS = 30_000;
/** The same while no trace has held a finished step. */
const FIRST_TRACES_EVERY_MS = 5000;

/** Reads the folder of a run that is going on. */
export class LiveRun {
  readonly #folder: string;
  readonly #name: string;
  readonly #begun: number;
  #sizes = "";
  #timeline: Timeline | undefined;
  #tracesAt = -Infinity;
  #run: RecordedRun;
  readonly #metrics: GrowingSeries;

  /** @param begun milliseconds since the epoch; what an earlier run has left in the folder is not shown */
  constructor(folder: string, name: string, begun: number) {
    this.#folder = folder;
    this.#name = name;
    this.#begun = begun;
    this.#metrics = new GrowingSeries(`${folder}/${METRICS_FILE}`);
    this.#run = this.#waiting();
  }

  /** The run as it was looked at last. */
  get run(): RecordedRun {
    return this.#run;
  }

  /** Looks again; true if anything has changed. */
  look(): boolean {
    const sizes = [METRICS_FILE, EVENTS_FILE, RUN_FILE].map((name) => sizeOf(`${this.#folder}/${name}`)).join();
    if (sizes === this.#sizes) return false;
    const rest = this.#timeline === undefined ? FIRST_TRACES_EVERY_MS : TRACES_EVERY_MS;
    const tracesAreDue = performance.now() - this.#tracesAt > rest;
    try {
      const run = readRun(this.#folder, { withTraces: tracesAreDue, series: this.#metrics.read() });
      this.#sizes = sizes;
      if (run.record === undefined || run.record.started < this.#begun) return false;
      if (tracesAreDue) [this.#timeline, this.#tracesAt] = [run.timeline, performance.now()];
      this.#run = { ...run, timeline: this.#timeline };
      return true;
    } catch {
      return false; // a file that is being replaced; the next look finds it
    }
  }

  /** The state of the page, on one line. */
  state(): string {
    return JSON.stringify({ data: dataOf([this.#run]), sections: sectionsOf(this.#run) });
  }

  #waiting(): RecordedRun {
    const missing = ["The run has not finished its first step yet."];
    const series = { steps: [], values: {}, badLines: 0 };
    return {
      name: this.#name,
      folder: this.#folder,
      record: undefined,
      series,
      events: [],
      timeline: undefined,
      missing,
    };
  }
}

function sizeOf(file: string): number {
  try {
    return pathKind(file) === "file" ? fileByteLength(file) : -1;
  } catch {
    return -1;
  }
}
