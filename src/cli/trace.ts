/**
 * `fullyshard trace`: makes one file for Perfetto of what the ranks of a run have traced, and sums it up; or tells what a flight
 * record says of ranks that have stopped.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { ConfigError, FileError } from "../errors.ts";
import { pathKind, replaceFile, resolveLinks } from "../runtime/files.ts";
import { terminal } from "../runtime/terminal.ts";
import { formatDuration } from "../runtime/clock.ts";
import { placesKey, requirePlaces } from "./places.ts";
import { flightLines } from "./trace_flight.ts";
import { eventsOf, openTraces, type RankTrace } from "../report/trace_files.ts";
import { kernelLines, milliseconds, unitLines } from "./trace_tables.ts";
import { type RankSummary, summarize } from "./trace_summary.ts";
import { shown } from "../words.ts";
import { path } from "../train/config_values.ts";

const SECTIONS = [section(
  "trace",
  z.strictObject({
    places: placesKey.describe("The folder that ranks traced into, or a flight record, as an argument or by --places"),
    out: path.optional().describe("File to write (default: trace.json in the folder)"),
    json: z.boolean().default(false).describe("Print one JSON object"),
  }),
)] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Merges the traces of a folder and prints a summary.
 *
 * @param argv the arguments after `trace`
 * @returns the exit code
 * @throws {FileError} if ranks are missing by name, a file is no trace, or it cannot be written
 * @throws {ConfigError} for arguments that are wrong
 */
export async function trace(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    const usage = "fullyshard trace <folder or flight record> [flags]";
    process.stdout.write(`${await configHelp(SECTIONS, usage, terminal("stdout").columns())}\n`);
    return 0;
  }
  const { places, out, json } = await resolveConfig(SECTIONS, { argv, positional: "places" });
  requirePlaces(places, ["folder or flight record"]);
  const [path] = places;
  if (pathKind(path) === "file") {
    const extra = Object.entries({ out, json: json || undefined }).find(([, value]) => value !== undefined);
    if (extra !== undefined) {
      const got = `'${path}', which is a file: a flight record is printed as text`;
      throw new ConfigError([{ path: `--${extra[0]}`, expected: "the folder of a trace", got }]);
    }
    process.stdout.write(`${shown(flightLines(path).join("\n"))}\n`);
    return 0;
  }
  const file = out ?? `${path}/trace.json`;
  const ranks = mergeTraces(path, file).map(summarize);
  const text = json ? [JSON.stringify({ file, ranks: ranks.map(jsonOf) })] : textOf(file, ranks);
  process.stdout.write(`${shown(text.join("\n"))}\n`);
  return 0;
}

/**
 * Writes the traces of all ranks in a folder into one file, on one clock.
 *
 * @throws {FileError} as {@link openTraces}, or if it cannot be written, or is one of theirs
 */
export function mergeTraces(folder: string, file: string): readonly RankTrace[] {
  const traces = openTraces(folder);
  const own = pathKind(file) === "file"
    ? traces.find((one) => resolveLinks(one.file) === resolveLinks(file))
    : undefined;
  if (own !== undefined) throw new FileError(file, "write", `it is the trace of rank ${own.rank}: choose another name`);
  replaceFile(file, pieces(traces));
  return traces;
}

function* pieces(traces: readonly RankTrace[]): Generator<Uint8Array> {
  const encoder = new TextEncoder();
  let [text, separator] = ["", '{"displayTimeUnit":"ms","traceEvents":[\n'];
  for (const trace of traces) {
    for (const event of eventsOf(trace)) {
      const moved = event.ts === undefined ? event : { ...event, ts: Math.round((event.ts + trace.shift) * 1e3) / 1e3 };
      text += separator + JSON.stringify(moved);
      separator = ",\n";
      if (text.length < 2 ** 16) continue;
      yield encoder.encode(text);
      text = "";
    }
  }
  yield encoder.encode(`${text}\n]}\n`);
}

/** Lines for people. */
function textOf(file: string, ranks: readonly RankSummary[]): string[] {
  const lines = [`Wrote '${file}': open it at https://ui.perfetto.dev`];
  for (const { rank, isCutOff } of ranks) if (isCutOff) lines.push(`Rank ${rank} did not come to close its trace`);
  for (const { rank, steps, step, compute, communication, exposed, host } of ranks) {
    if (steps === undefined) {
      lines.push(`Rank ${rank}: no step has ended`);
      continue;
    }
    const which = steps.first === steps.last ? `step ${steps.first}` : `steps ${steps.first} to ${steps.last}`;
    const share = step === 0 ? 0 : Math.round(exposed / step * 100);
    lines.push(
      `Rank ${rank}, mean of ${which}: ${formatDuration(step * 1000)} a step; compute ${milliseconds(compute)}, ` +
        `communication ${milliseconds(communication)}, of it exposed ${
          milliseconds(exposed)
        } (${share} % of the step), ` +
        `other calls ${milliseconds(host)}`,
    );
  }
  const [first] = ranks;
  return first === undefined ? lines : [...lines, ...unitLines(first), ...kernelLines(first)];
}

/** A rank as `--json` has it, with names as in `metrics.jsonl`. */
function jsonOf(
  { rank, isCutOff, steps, step, compute, communication, exposed, host, units, kernels }: RankSummary,
): object {
  return {
    rank,
    cut_off: isCutOff,
    steps: steps === undefined ? null : [steps.first, steps.last],
    step_seconds: step,
    compute_seconds: compute,
    communication_seconds: communication,
    exposed_seconds: exposed,
    other_calls_seconds: host,
    units: units.map(({ unit, forward, backward, wait, communication, bytes }) => ({
      unit,
      forward_seconds: forward,
      backward_seconds: backward,
      gather_wait_seconds: wait,
      communication_seconds: communication,
      bytes,
    })),
    kernels,
  };
}
