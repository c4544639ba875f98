/**
 * One step of all ranks, from the ends of their traces: units gathered, computed, reduced and freed, on one clock.
 *
 * @module
 */
import { listDirectory, openReadable, pathKind } from "../runtime/files.ts";
import { traceFileOf, type Track, TRACKS, UNFINISHED } from "../runtime/trace.ts";
import {
  correction,
  eventFrom,
  type Meeting,
  spansIn,
  startOf,
  type TraceEvent,
  type TraceSpan,
  type TraceStart,
} from "./trace_files.ts";

/** Bytes at the end of each trace that are read first. While they do not hold enough steps, twice as many are read, */
const FIRST_TAIL_BYTES = 2 ** 18;
/** but no more than these. */
const MOST_TAIL_BYTES = 2 ** 24;

/** Steps of all ranks after which no more of the traces is read: the last one may be cut off. */
const ENOUGH_STEPS = 3;

/** Longest list of spans of a rank; shorter spans are left out first. */
const MOST_SPANS = 600;

/** Work of a rank in a step. */
export interface TimelineSpan {
  readonly track: Track;
  /** Subject: a call, the forward or backward of a unit, a wait, the free of its parameters. */
  readonly kind: "gather" | "reduce" | "forward" | "backward" | "wait" | "free" | "call";
  readonly name: string;
  /** Microseconds from the beginning of the step. */
  readonly begin: number;
  readonly end: number;
}

/** A step of a rank. */
export interface TimelineRank {
  readonly rank: number;
  readonly spans: readonly TimelineSpan[];
  /** Number of spans that are not listed, the shortest ones. */
  readonly left: number;
}

/** A step of all ranks that have traced it. */
export interface Timeline {
  readonly step: number;
  /** Milliseconds since the epoch at which the first rank's process began. */
  readonly origin: number;
  /** Microseconds from the first rank's beginning of the step to the last rank's end. */
  readonly duration: number;
  readonly worldSize: number;
  readonly ranks: readonly TimelineRank[];
}

/** A rank's tail, with its spans in microseconds of its own. */
interface Tail {
  readonly start: TraceStart;
  /** True if it is the whole trace. */
  readonly isWhole: boolean;
  readonly spans: readonly TraceSpan[];
  readonly meetings: ReadonlyMap<number, Meeting>;
}

/**
 * The newest step that every traced rank has finished.
 *
 * @param folder of the ranks' files
 * @returns undefined if it holds no trace of a finished step
 * @throws {FileError} if a file cannot be read
 */
export function readTimeline(folder: string): Timeline | undefined {
  const tailsOfRun = readTails(tracesIn(folder).map(({ file }) => file));
  const [first] = tailsOfRun;
  if (first === undefined) return undefined;
  const step = newestStep(tailsOfRun);
  if (step === undefined) return undefined;
  const placed = tailsOfRun.map(({ start: { rank, origin }, spans, meetings }) => {
    const apart = (origin - first.start.origin) * 1000;
    const shifted = new Map([...meetings].map(([number, { begin, end }]) => [number, moved({ begin, end }, apart)]));
    const shift = apart + correction(first.meetings, shifted);
    const around = spans.find((span) => stepOf(span) === step);
    return { rank, shift, spans, ...moved({ begin: around?.begin ?? 0, end: around?.end ?? 0 }, shift) };
  });
  const from = Math.min(...placed.map(({ begin }) => begin));
  return {
    step,
    origin: first.start.origin,
    duration: Math.max(...placed.map(({ end }) => end)) - from,
    worldSize: first.start.worldSize,
    ranks: placed.map(({ rank, shift, spans, begin, end }) => {
      const inStep = spans.flatMap((span) => shownSpan(span, shift)).filter((span) =>
        span.begin >= begin && span.end <= end
      );
      const longest = inStep.toSorted((a, b) => (b.end - b.begin) - (a.end - a.begin)).slice(0, MOST_SPANS);
      const kept = longest.toSorted((a, b) => a.begin - b.begin || b.end - a.end);
      const list = kept.map((span) => ({ ...span, ...moved(span, -from) }));
      return { rank, spans: list, left: inStep.length - kept.length };
    }),
  };
}

/** The folders beside a run's other files that hold traces, and the ranks' files in a folder. */
export function tracesIn(folder: string): readonly { readonly rank: number; readonly file: string }[] {
  if (pathKind(folder) !== "directory") return [];
  const names = new Set(listDirectory(folder));
  return [...names].flatMap((name) => {
    const rank = Number(/^rank(\d+)\.json(?:\.partial)?$/.exec(name)?.[1] ?? NaN);
    if (!Number.isInteger(rank)) return [];
    // A file that was closed wins over one that is left over.
    if (name.endsWith(UNFINISHED) && names.has(name.slice(0, -UNFINISHED.length))) return [];
    const file = traceFileOf(folder, rank);
    return [{ rank, file: name.endsWith(UNFINISHED) ? `${file}${UNFINISHED}` : file }];
  }).toSorted((a, b) => a.rank - b.rank);
}

/** As much of the ends of traces as holds some steps; of the run that the first file is of. */
function readTails(files: readonly string[]): readonly Tail[] {
  for (let mostBytes = FIRST_TAIL_BYTES;; mostBytes *= 2) {
    const tails = files.flatMap((file) => tailOf(file, mostBytes));
    const ofRun = tails.filter(({ start }) => start.run === tails[0]?.start.run);
    const isEnough = commonSteps(ofRun).length >= ENOUGH_STEPS || ofRun.every(({ isWhole }) => isWhole);
    if (isEnough || mostBytes >= MOST_TAIL_BYTES) return ofRun;
  }
}

function tailOf(path: string, mostBytes: number): readonly Tail[] {
  const start = startOf(path);
  if (start === undefined) return [];
  using file = openReadable(path);
  const from = Math.max(0, file.byteLength - mostBytes);
  const bytes = new Uint8Array(file.byteLength - from);
  file.read(from, bytes);
  const lines = new TextDecoder().decode(bytes).split("\n").slice(from === 0 ? 0 : 1);
  const events = lines.flatMap((line): TraceEvent[] => {
    // Kernels are three of four events, and no timeline shows them.
    if (line.includes('"ph":"M"') || line.includes('"cat":"kernel"')) return [];
    const event = eventFrom(line.endsWith(",") ? line.slice(0, -1) : line);
    return event === undefined ? [] : [event];
  });
  const spans = [...spansIn(events)];
  const meetings = new Map(spans.flatMap(({ event: { args = {} }, begin, end }) => {
    const { kind, group, sequence } = args;
    const isMeeting = kind === "exchange" && group === "world" && typeof sequence === "number";
    return isMeeting ? [[sequence, { begin, end }] as const] : [];
  }));
  return [{ start, isWhole: from === 0, spans, meetings }];
}

function stepOf({ event: { cat, args } }: TraceSpan): number | undefined {
  const step = cat === "step" ? args?.["step"] : undefined;
  return typeof step === "number" ? step : undefined;
}

/** The newest step in all tails, but not the last of a run where an earlier one is: the end of the run belongs to it. */
function newestStep(tails: readonly Tail[]): number | undefined {
  const steps = commonSteps(tails);
  return steps.length >= ENOUGH_STEPS ? steps.at(-2) : steps.at(-1);
}

/** The steps that all tails hold from begin to end, ascending. */
function commonSteps(tails: readonly Tail[]): readonly number[] {
  const sets = tails.map(({ spans }) => new Set(spans.map(stepOf)));
  const [own = new Set<number>(), ...others] = sets;
  return [...own].filter((step) => step !== undefined).filter((step) => others.every((set) => set.has(step)))
    .toSorted((a, b) => a - b);
}

const KINDS: Readonly<Partial<Record<Track, TimelineSpan["kind"]>>> = { gather: "gather", reduce: "reduce" };

function shownSpan({ event: { cat, tid = 0, name = "" }, begin, end }: TraceSpan, shift: number): TimelineSpan[] {
  const track = TRACKS[tid];
  if (track === undefined || cat === "kernel" || cat === "step") return [];
  const kind = cat === "collective"
    ? KINDS[track] ?? "call"
    : cat === "unit"
    ? name.startsWith("forward") ? "forward" : "backward"
    : cat === "wait" || cat === "free"
    ? cat
    : undefined;
  return kind === undefined ? [] : [{ track, kind, name, ...moved({ begin, end }, shift) }];
}

function moved<Times extends Meeting>({ begin, end }: Times, shift: number): Meeting {
  return { begin: begin + shift, end: end + shift };
}
