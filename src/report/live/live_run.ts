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
import { SeriesLines } from "../series.ts";
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
  /** Bytes of the metrics, and of the other files. */
  #sizes = { metrics: -1, others: "" };
  #timeline: Timeline | undefined;
  #tracesAt = -Infinity;
  #run: RecordedRun;
  /** The rest of the state, while it stays as it is. */
  #rest: string | undefined;
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

  /** Looks again; true if anything has changed. A step changes the metrics alone, so mostly only their new lines are read. */
  look(): boolean {
    const sizes = {
      metrics: sizeOf(`${this.#folder}/${METRICS_FILE}`),
      others: [EVENTS_FILE, RUN_FILE].map((name) => sizeOf(`${this.#folder}/${name}`)).join(),
    };
    if (sizes.metrics === this.#sizes.metrics && sizes.others === this.#sizes.others) return false;
    const rest = this.#timeline === undefined ? FIRST_TRACES_EVERY_MS : TRACES_EVERY_MS;
    const tracesAreDue = performance.now() - this.#tracesAt > rest;
    try {
      const series = this.#metrics.read();
      const isStep = sizes.others === this.#sizes.others && this.#run.record !== undefined && !tracesAreDue;
      if (isStep && series !== undefined) {
        this.#run = { ...this.#run, series };
        this.#sizes = sizes;
        return true;
      }
      const run = readRun(this.#folder, { withTraces: tracesAreDue, series });
      this.#sizes = sizes;
      if (run.record === undefined || run.record.started < this.#begun) return false;
      if (tracesAreDue) [this.#timeline, this.#tracesAt] = [run.timeline, performance.now()];
      this.#run = { ...run, timeline: this.#timeline };
      this.#rest = undefined;
      return true;
    } catch {
      return false; // a file that is being replaced; the next look finds it
    }
  }

  /** The state of the page in parts, each on one line: what changes with every step, and the rest. */
  state(): { readonly run: string; readonly rest: string } {
    this.#rest ??= JSON.stringify({ sections: sectionsOf(this.#run, "others") });
    return {
      run: JSON.stringify({ data: dataOf([this.#run]), sections: sectionsOf(this.#run, "by step") }),
      rest: this.#rest,
    };
  }

  #waiting(): RecordedRun {
    const missing = ["The run has not finished its first step yet."];
    return {
      name: this.#name,
      folder: this.#folder,
      record: undefined,
      series: new SeriesLines().series(),
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
