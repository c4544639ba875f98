/**
 * The journal of a run: `run.json` and `events.jsonl` in its folder, and the report made of them. Its faults neither stop a run nor
 * slow it: one warning tells of the first one.
 *
 * Note [Before the first step]: a run that fails before its first step leaves nothing in its folder, so events are kept in memory
 * until the folder is begun.
 *
 * @module
 */
import { CollectiveError } from "../errors.ts";
import type { FlightRecord } from "../comm/flight_record.ts";
import type { EventOf, EventType, RankPlace, RunEvent } from "../report/run_event.ts";
import { EVENTS_FILE, REPORT_FILE, RUN_FILE } from "../report/run_files.ts";
import type { OwnedPeak, RunRecord } from "../report/run_record.ts";
import { type BackgroundRun, runInBackground } from "../runtime/background_worker.ts";
import { openWritable, pathKind, readTextSync, replaceFile, type WritableFile } from "../runtime/files.ts";
import type { Logger, LogRecord } from "../runtime/log.ts";
import type { RunConfig } from "./config.ts";

/** Most events that are kept before the folder is begun. */
const MOST_KEPT = 1000;

/** An event without its time. */
type NewEvent = { readonly [Type in EventType]: Omit<EventOf<Type>, "time"> }[EventType];

/** Writes the journal of one rank; rank 0 also writes the record and the report. */
export class RunJournal implements Disposable {
  readonly #folder: string;
  readonly #writesReport: boolean;
  readonly #log: Logger;
  #kept: RunEvent[] = [];
  #file: WritableFile | undefined;
  #ranks: (() => FlightRecord) | undefined;
  #isMain = false;
  #isBroken = false;
  /** The report that a Worker writes. */
  #writing: BackgroundRun | undefined;
  /** Files that a warning has named. */
  readonly #warned = new Set<string>();

  /** @param log takes the warning about the journal itself */
  constructor({ out, report }: Pick<RunConfig, "out" | "report">, log: Logger) {
    this.#folder = out;
    this.#writesReport = report;
    this.#log = log;
  }

  /** Takes a line of the log: warnings and errors are events. */
  take({ time, level, rank, message: text }: LogRecord): void {
    if (level !== "warn" && level !== "error") return;
    this.#write({ type: "log", time, level, rank: rank ?? null, text });
    this.#noteRanks(time);
  }

  /** Gives the calls of all ranks, which are noted with a warning while a rank waits. */
  follow(ranks: () => FlightRecord): void {
    this.#ranks = ranks;
  }

  /** Adds an event, on rank 0; other ranks have warnings and errors only. Never throws. */
  add(event: NewEvent): void {
    if (this.#isMain) this.#write({ ...event, time: Date.now() });
  }

  /** Adds the peak of memory by owner, on rank 0. */
  measured(step: number, { peakBytes, terms, offloaded }: OwnedPeak): void {
    this.add({ type: "memory", step, peakBytes, terms, offloaded });
  }

  /** A checkpoint is complete: rank 0 notes it, and begins to write the report. */
  saved(path: string, step: number, memory: OwnedPeak): void {
    if (!this.#isMain) return;
    this.add({ type: "saved", step, path });
    this.measured(step, memory);
    this.beginReport();
  }

  /** Adds the error that ends a rank, unless the error of another rank caused it. */
  fail(error: unknown, rank: number): void {
    if (error instanceof CollectiveError && error.facts.stoppedBy !== undefined) return;
    const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    this.#write({ type: "log", time: Date.now(), level: "error", rank, text });
  }

  /**
   * Begins the files, on rank 0 before other ranks. A new run replaces those of an earlier run; a resumed one adds to them. Never
   * throws.
   *
   * @param record of the run, on rank 0
   */
  begin(record: RunRecord | undefined, firstStep: number): void {
    this.#guard(() => {
      const path = `${this.#folder}/${EVENTS_FILE}`;
      this.#isMain = record !== undefined;
      if (record !== undefined) {
        const before = firstStep > 0 && pathKind(path) === "file" ? readTextSync(path) : "";
        replaceFile(path, before.slice(0, before.lastIndexOf("\n") + 1)); // a line that a crash cut off goes
        replaceFile(`${this.#folder}/${RUN_FILE}`, `${JSON.stringify(record, undefined, 2)}\n`);
      } else if (pathKind(path) !== "file") {
        // On another host the folder may be another one.
        this.#isBroken = true;
        return;
      }
      this.#file = openWritable(path, "append");
      if (record !== undefined) {
        this.#file.write(`${JSON.stringify({ type: "start", time: Date.now(), step: firstStep })}\n`);
      }
    });
    for (const event of this.#kept.splice(0)) this.#write(event);
  }

  /** Begins to write the report in a Worker, unless one is at it. Never waits, and never throws. */
  beginReport(): void {
    if (!this.#isMain || !this.#writesReport || this.#writing !== undefined) return;
    const data = { folder: this.#folder, file: `${this.#folder}/${REPORT_FILE}` };
    try {
      const url = new URL("../report/report_worker.ts", import.meta.url);
      const run = runInBackground(url, data);
      const ended = run.ended.catch((error) => this.#warn(REPORT_FILE, error)).finally(() => this.#writing = undefined);
      this.#writing = { ...run, ended };
    } catch (error) {
      this.#warn(REPORT_FILE, error);
    }
  }

  /** Writes the report at the end of the run. Never throws. */
  async finishReport(): Promise<void> {
    if (!this.#isMain || !this.#writesReport) return;
    this.#writing?.hold();
    await this.#writing?.ended;
    try {
      const { writeReport } = await import("../report/write_report.ts");
      await writeReport([this.#folder], `${this.#folder}/${REPORT_FILE}`);
    } catch (error) {
      this.#warn(REPORT_FILE, error);
    }
  }

  [Symbol.dispose](): void {
    this.#guard(() => this.#file?.[Symbol.dispose]());
    this.#isBroken = true;
  }

  #noteRanks(time: number): void {
    let ranks: FlightRecord["ranks"] | undefined;
    try {
      ranks = this.#file === undefined ? undefined : this.#ranks?.().ranks;
    } catch {
      return; // a group that has ended knows no calls
    }
    if (ranks === undefined || ranks.every(({ state }) => state !== "waiting")) return;
    const places = ranks.map(({ rank, state, calls }): RankPlace => {
      const newest = calls.at(-1);
      const call = newest === undefined ? null : `${newest.kind} '${newest.unit}'`;
      return { rank, state, call, step: newest === undefined || newest.step === 0 ? null : newest.step };
    });
    this.#write({ type: "ranks", time, ranks: places });
  }

  #write(event: RunEvent): void {
    if (this.#isBroken) return;
    const file = this.#file;
    if (file === undefined) {
      if (this.#kept.length < MOST_KEPT) this.#kept.push(event);
      return;
    }
    // One write, so that lines of several ranks do not mix.
    this.#guard(() => file.write(`${JSON.stringify(event)}\n`));
  }

  #guard(action: () => void): void {
    try {
      action();
    } catch (error) {
      this.#isBroken = true;
      this.#warn(EVENTS_FILE, error);
    }
  }

  #warn(what: string, error: unknown): void {
    if (this.#warned.has(what)) return;
    this.#warned.add(what);
    const reason = error instanceof Error ? error.message : String(error);
    this.#log.warn(`Training goes on without '${what}': ${reason}`);
  }
}
