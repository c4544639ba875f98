/**
 * The files that the ranks of a run have traced into, read as they are or cut off, and put on one clock.
 *
 * Note [One clock]: each file says when its times were 0, by the wall clock of its host. An exchange ends on no rank before all have
 * begun it; where the files of two ranks say otherwise, their clocks differ, and one is moved by as much as makes it so.
 *
 * @module
 */
import * as z from "zod";
import { at } from "../at.ts";
import { FileError } from "../errors.ts";
import { linesOf } from "../runtime/lines.ts";
import { fileByteLength, listDirectory, openReadable, pathKind, readBytesSync } from "../runtime/files.ts";
import { IDENTITY_EVENT, type TraceFacts, traceFileOf, traceTailOf, UNFINISHED } from "../runtime/trace.ts";
import { linesOfTail, placeOfTail } from "../runtime/trace_tail.ts";
import { rankList } from "../words.ts";

/** Most bytes of a trace up to the end of its first event. */
const MOST_START_BYTES = 4096;

/** Facts of a trace, in its first event. */
export interface TraceStart {
  readonly rank: number;
  readonly worldSize: number;
  readonly run: string;
  /** Milliseconds since the epoch at which its times were 0. */
  readonly origin: number;
}

const identitySchema: z.ZodType<TraceStart> = z.object({
  rank: z.int().nonnegative(),
  worldSize: z.int().positive(),
  run: z.string(),
  origin: z.number(),
});

/** An event of the trace event format. */
export interface TraceEvent {
  readonly ph: "M" | "B" | "E" | "X";
  readonly pid: number;
  readonly tid?: number | undefined;
  readonly ts?: number | undefined;
  readonly dur?: number | undefined;
  readonly name?: string | undefined;
  readonly cat?: string | undefined;
  readonly args?: TraceFacts | undefined;
}

const eventSchema: z.ZodType<TraceEvent> = z.strictObject({
  ph: z.enum(["M", "B", "E", "X"]),
  pid: z.int().nonnegative(),
  tid: z.int().nonnegative().optional(),
  ts: z.number().optional(),
  dur: z.number().optional(),
  name: z.string().optional(),
  cat: z.string().optional(),
  args: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])).optional(),
});

/** The trace of one rank. */
export interface RankTrace {
  readonly rank: number;
  readonly file: string;
  /** True if the rank ended before it closed the span. */
  readonly isCutOff: boolean;
  /** Microseconds that are added to its times, so that the times of all ranks are on one clock and begin at 0. */
  readonly shift: number;
}

/** A file, before it is compared with others. */
interface OpenedTrace extends Omit<RankTrace, "shift"> {
  readonly identity: TraceStart;
}

/**
 * Finds the files of all ranks in a folder.
 *
 * @throws {FileError} if there is none, one is missing, or they are of several runs
 */
export function openTraces(folder: string): readonly RankTrace[] {
  const names = pathKind(folder) === "none" ? [] : listDirectory(folder);
  const traces = names.flatMap((name) => {
    const rank = /^rank(\d+)\.json/.exec(name)?.[1];
    const file = rank === undefined ? undefined : traceFileOf(folder, Number(rank));
    if (file !== `${folder}/${name}` && `${file}${UNFINISHED}` !== `${folder}/${name}`) return [];
    return openTrace(`${folder}/${name}`);
  }).sort((a, b) => a.rank - b.rank);
  const [first] = traces;
  if (first === undefined) {
    throw new FileError(
      folder,
      "find a trace in",
      "no rank has traced into it; ranks do that call 'launch', under 'fullyshard run --trace' or with a folder of their own",
    );
  }
  const { worldSize, run } = first.identity;
  const other = traces.find(({ identity }) => identity.worldSize !== worldSize || identity.run !== run);
  if (other !== undefined) {
    throw new FileError(other.file, "merge", `it is of another run than '${first.file}': remove the older one`);
  }
  const missing = Array.from({ length: worldSize }, (_, rank) => rank).filter((rank) =>
    traces.every((trace) => trace.rank !== rank)
  );
  if (missing.length > 0) {
    const there = traces.map(({ rank }) => rank);
    const detail = `${rankList(missing)} of ${worldSize} left none, only ${rankList(there)} did`;
    throw new FileError(folder, "merge the traces in", detail);
  }
  return align(traces);
}

/** The events of a rank, in their order, those of its tail too; a last line that is cut off is left out. */
export function* eventsOf({ file, rank }: Pick<RankTrace, "file" | "rank">): Generator<TraceEvent> {
  let number = 0;
  let cut: string | undefined;
  for (const line of linesOf(file)) {
    number++;
    if (cut !== undefined) throw new FileError(file, "read", `line ${number - 1} is no event of a trace: ${cut}`);
    if (line === "[" || line === "]" || line === "") continue;
    const text = line.endsWith(",") ? line.slice(0, -1) : line;
    const event = eventFrom(text);
    if (event === undefined) cut = text.slice(0, 80);
    else yield event;
  }
  if (cut === undefined && file.endsWith(UNFINISHED)) yield* tailEventsOf(file, rank);
}

/** Events of a rank that are not in its file yet; none if its tail belongs behind fewer lines, and so is in the file. */
function* tailEventsOf(file: string, rank: number): Generator<TraceEvent> {
  const path = traceTailOf(file.slice(0, -UNFINISHED.length));
  if (pathKind(path) !== "file") return;
  const bytes = readSteady(path);
  if (placeOfTail(bytes) !== fileByteLength(file)) return;
  for (const line of linesOfTail(bytes, rank)) {
    const event = eventFrom(line);
    if (event === undefined) throw new FileError(path, "read", `it holds no event of a trace: ${line.slice(0, 80)}`);
    yield event;
  }
}

/** Bytes of a file that a rank may be writing at this moment: read until two readings are the same. */
function readSteady(path: string): Uint8Array {
  for (let before = readBytesSync(path);;) {
    const now = readBytesSync(path);
    if (now.length === before.length && now.every((byte, i) => byte === before[i])) return now;
    before = now;
  }
}

/** The event of a line without its comma; undefined if it is none. */
export function eventFrom(text: string): TraceEvent | undefined {
  try {
    return eventSchema.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}

function openTrace(file: string): OpenedTrace {
  const identity = startOf(file);
  if (identity === undefined) {
    throw new FileError(file, "read", "it does not begin as a rank's trace does: remove it, or trace again");
  }
  return { rank: identity.rank, file, isCutOff: file.endsWith(UNFINISHED), identity };
}

/** Facts of the trace in a file; undefined if it does not begin as a trace does. */
export function startOf(file: string): TraceStart | undefined {
  using opened = openReadable(file);
  const bytes = new Uint8Array(Math.min(MOST_START_BYTES, opened.byteLength));
  opened.read(0, bytes);
  // The first line has the bracket of the whole list alone.
  const [, line = ""] = new TextDecoder().decode(bytes).split("\n");
  const first = eventFrom(line.replace(/,$/, ""));
  return first?.name === IDENTITY_EVENT ? identitySchema.safeParse(first.args).data : undefined;
}

/** Something that lasted. */
export interface TraceSpan {
  /** The event that began the span. */
  readonly event: TraceEvent;
  /** Begin of the span, in microseconds. */
  readonly begin: number;
  readonly end: number;
  /** The spans around this one on its track, the outermost first. */
  readonly around: readonly TraceEvent[];
}

/** The spans that have begun and ended, in the order of their ends. */
export function spansOf(trace: Pick<RankTrace, "file" | "rank">): Generator<TraceSpan> {
  return spansIn(eventsOf(trace));
}

/** The spans that begin and end among events of one rank. */
export function* spansIn(events: Iterable<TraceEvent>): Generator<TraceSpan> {
  const open = new Map<number, TraceEvent[]>();
  for (const event of events) {
    const { ph, ts = 0, tid = 0, dur = 0 } = event;
    if (ph === "M") continue;
    const around = open.get(tid) ?? [];
    open.set(tid, around);
    if (ph === "B") around.push(event);
    else if (ph === "X") yield { event, begin: ts, end: ts + dur, around };
    else {
      const began = around.pop();
      if (began !== undefined) yield { event: began, begin: began.ts ?? ts, end: ts, around };
    }
  }
}

/** Times at which a rank came to an exchange of all ranks, and left it. */
export type Meeting = Pick<TraceSpan, "begin" | "end">;

/** See Note [One clock]. */
function align(traces: readonly OpenedTrace[]): readonly RankTrace[] {
  const { origin } = at(traces, 0, "trace").identity;
  const measured = traces.map((trace) => measure(trace, (trace.identity.origin - origin) * 1000));
  const { meetings } = at(measured, 0, "trace");
  const moved = measured.map((one) => ({ ...one, move: correction(meetings, one.meetings) }));
  const start = Math.min(...moved.map(({ first, move }) => first + move));
  return traces.map(({ rank, file, isCutOff }, i) => {
    const { apart, move } = at(moved, i, "trace");
    return { rank, file, isCutOff, shift: Math.round((apart + move - start) * 1e3) / 1e3 };
  });
}

/** The first time of a trace and its exchanges by their number, on a clock that is `apart` from its own. */
function measure(trace: OpenedTrace, apart: number) {
  let first = Infinity;
  const meetings = new Map<number, Meeting>();
  for (const { event: { args = {} }, begin, end } of spansOf(trace)) {
    first = Math.min(first, begin + apart);
    const { kind, group, sequence } = args;
    if (kind !== "exchange" || group !== "world" || typeof sequence !== "number") continue;
    meetings.set(sequence, { begin: begin + apart, end: end + apart });
  }
  return { apart, first, meetings };
}

/** Least that a rank's times must be moved by, so that it ends no exchange before another begins it, nor the other way round. */
export function correction(others: ReadonlyMap<number, Meeting>, own: ReadonlyMap<number, Meeting>): number {
  let [least, most] = [-Infinity, Infinity];
  for (const [sequence, mine] of own) {
    const other = others.get(sequence);
    if (other === undefined) continue;
    least = Math.max(least, other.begin - mine.end);
    most = Math.min(most, other.end - mine.begin);
  }
  return Math.min(Math.max(0, least), most);
}
