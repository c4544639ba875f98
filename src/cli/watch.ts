/**
 * `fullyshard watch`: shows a run in the terminal as its folder grows. The run need not know of it.
 *
 * @module
 */
import process from "node:process";
import { setTimeout } from "node:timers";
import * as z from "zod";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { GrowingSeries } from "../report/live/growing_series.ts";
import { readRun, type RecordedRun } from "../report/read_run.ts";
import { METRICS_FILE } from "../report/run_files.ts";
import { type RunState, stateOf } from "../report/run_state.ts";
import { MOST_POINTS } from "../report/series.ts";
import { eventLine, screenOf, stepLine } from "../report/terminal/screen.ts";
import { exitCodeOf, watchStopSignals } from "../runtime/signals.ts";
import { terminal, terminalManners } from "../runtime/terminal.ts";
import { placesKey, requirePlaces } from "./places.ts";

const SECTIONS = [section(
  "watch",
  z.strictObject({
    places: placesKey.describe("Folder of the run, as an argument or by --places"),
    interval: z.number().positive().max(3600).default(1).describe("Seconds between two looks at the folder"),
  }),
)] as const;

/** Lines of a run that has begun before, where the output is no terminal. */
const LINES_BEFORE = 10;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Shows a run until it ends, or a signal comes.
 *
 * @param argv the arguments after `watch`
 * @returns 0 when the run has ended, else 128 + the signal
 * @throws {FileError} if the folder holds no run
 * @throws {ConfigError} for arguments that are wrong
 */
export async function watch(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    const usage = "fullyshard watch <run> [flags]";
    process.stdout.write(`${await configHelp(SECTIONS, usage, terminal("stdout").columns())}\n`);
    return 0;
  }
  const { places, interval } = await resolveConfig(SECTIONS, { argv, positional: "places" });
  requirePlaces(places, ["run"]);
  const [folder] = places;
  let wake = (): void => {};
  using stop = watchStopSignals(() => wake());
  const isScreen = terminal("stdout").isTerminal && terminalManners().redraws;
  using view = isScreen ? new Screen() : new Lines();
  const metrics = new GrowingSeries(`${folder}/${METRICS_FILE}`, isScreen ? MOST_POINTS : Infinity);
  // A run gives its folder up before it writes its last event.
  let quiet = 0;
  while (true) {
    const run = readRun(folder, { series: metrics.read() });
    const state = stateOf(folder, run.events);
    view.show(run, state);
    quiet = state === "silent" ? quiet + 1 : 0;
    if (stop.signal !== undefined) return exitCodeOf(stop.signal);
    if ((state !== "running" && state !== "silent") || quiet > 1) {
      view.end(run, state);
      return 0;
    }
    await new Promise<void>((resolve) => {
      wake = resolve;
      setTimeout(resolve, interval * 1000);
    });
    if (stop.signal !== undefined) return exitCodeOf(stop.signal);
  }
}

/** Size of the terminal; one that does not know its own counts as the usual one. */
function sizeOf(): { readonly columns: number; readonly rows: number } {
  return { columns: terminal("stdout").columns(), rows: process.stdout.rows || 24 };
}

/** The whole terminal, drawn anew at each look. */
class Screen implements Disposable {
  #isOpen = false;

  show(run: RecordedRun, state: RunState): void {
    const size = sizeOf();
    const lines = screenOf(run, state, size).slice(0, size.rows);
    const begin = this.#isOpen ? "" : "\u001b[?1049h\u001b[?25l";
    this.#isOpen = true;
    process.stdout.write(`${begin}\u001b[H${lines.map((line) => `${line}\u001b[K`).join("\r\n")}\u001b[J`);
  }

  /** Leaves the last state on the terminal. */
  end(run: RecordedRun, state: RunState): void {
    this[Symbol.dispose]();
    process.stdout.write(`${screenOf(run, state, sizeOf()).join("\n")}\n`);
  }

  [Symbol.dispose](): void {
    if (this.#isOpen) process.stdout.write("\u001b[?25h\u001b[?1049l");
    this.#isOpen = false;
  }
}

/** A line for each step and event. */
class Lines implements Disposable {
  #step = -Infinity;
  #numEvents = 0;

  show(run: RecordedRun): void {
    const { series: { steps }, events } = run;
    const lines = steps.flatMap((step, place) => step > this.#step ? [stepLine(run, place)] : []);
    const isFirst = this.#step === -Infinity;
    const shownLines = isFirst ? lines.slice(-LINES_BEFORE) : lines;
    this.#step = steps.at(-1) ?? this.#step;
    const notes = events.slice(this.#numEvents).flatMap((event) => eventLine(event) ?? []);
    this.#numEvents = events.length;
    for (const line of [...shownLines, ...notes]) process.stdout.write(`${line}\n`);
  }

  end(_run: RecordedRun, state: RunState): void {
    if (state === "silent") {
      process.stdout.write("The run is no longer running and recorded no end; it was probably killed\n");
    }
  }

  [Symbol.dispose](): void {}
}
