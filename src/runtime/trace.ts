/**
 * A rank's trace: events of the trace event format, which Perfetto and chrome://tracing read, handed to a sink as they happen.
 * `trace_file.ts` writes them to a file.
 *
 * Note [Spans nest]: spans of a track are nested, as the format demands. When a span ends, all later spans of its track that are
 * still open end too.
 *
 * @module
 */
import { originOfElapsed } from "./clock.ts";

/** Tracks of a rank, each a sequence of events: a track of the host, and a track of each stream. */
export const TRACKS = ["host", "compute", "gather", "reduce"] as const;
/** Name of a track. */
export type Track = typeof TRACKS[number];

/** Facts that go with an event. */
export type TraceFacts = Readonly<Record<string, string | number | boolean>>;

/** Subject of an event: a step, a call of a group, the forward or backward of a unit, a wait for its parameters, their free, a kernel. */
export type TraceCategory = "step" | "collective" | "unit" | "wait" | "free" | "kernel";

/** Work of a kernel. */
export interface KernelFacts {
  /** Floating-point operations. */
  readonly flops: number;
  /** Bytes read and written, each element once. */
  readonly bytes: number;
}

/** A span of time that has begun. */
export interface Span extends Disposable {
  /** Ends it; a second call does nothing. */
  end(): void;
}

/** The rank, the world and the run of a trace. */
export interface TraceIdentity {
  /** The rank's number. */
  readonly rank: number;
  /** Number of ranks. */
  readonly worldSize: number;
  /** Id of the run, the same for all its ranks; empty without a launcher. */
  readonly run: string;
}

/** Name of the event that holds the {@link TraceIdentity}. */
export const IDENTITY_EVENT = "fullyshard";

/** A span that is not recorded. */
const UNRECORDED: Span = { end: () => {}, [Symbol.dispose]: () => {} };

/** An event of the trace event format. */
export interface TraceRecord {
  /** Kind: facts, or begin or end of a span. */
  readonly ph: "M" | "B" | "E";
  /** The rank. */
  readonly pid: number;
  /** Number of the track. */
  readonly tid?: number;
  /** Microseconds. */
  readonly ts?: number;
  /** What ran, such as a collective of a unit. */
  readonly name?: string;
  /** Category, such as `unit` or `wait`. */
  readonly cat?: string;
  /** Details, shown when the event is selected. */
  readonly args?: Readonly<Record<string, unknown>>;
}

/** Time of a kernel's call. */
export interface KernelTimes {
  /** Number of the track. */
  readonly tid: number;
  /** Begin, in microseconds. */
  readonly ts: number;
  /** Microseconds that it took. */
  readonly dur: number;
}

/** Receives the events of a trace. */
export interface TraceSink {
  /** Takes one event. */
  event(event: TraceRecord): void;
  /** Takes a kernel's call. */
  kernel(name: string, times: KernelTimes, work: KernelFacts): void;
  /** Makes the events so far survive if this process is killed. */
  flush(): void;
  /** No event follows. */
  close(): void;
}

/** Options of a trace. */
export interface TraceOptions {
  /** Records every call of a kernel. @default true */
  readonly kernels?: boolean;
}

/** File of a rank's trace; while it is written, its name ends in {@link UNFINISHED}. */
export function traceFileOf(folder: string, rank: number): string {
  return `${folder}/rank${rank}.json`;
}

/** Suffix of a file that its rank has not closed. */
export const UNFINISHED = ".partial";

/** File of the newest events of a rank's trace while it is written. @param file the rank's file, as it is named when it is closed */
export function traceTailOf(file: string): string {
  return `${file}.tail`;
}

/** Records the events of a rank. It records nothing before it is opened, and after it is closed. */
export class Trace {
  /** True if calls of kernels are recorded. */
  readonly hasKernels: boolean;
  #sink: TraceSink | undefined;
  #rank = 0;
  readonly #spans: Readonly<Record<Track, Span[]>> = { host: [], compute: [], gather: [], reduce: [] };
  /** Track of the collective whose kernels are recorded now; undefined if kernels belong to the track of their stream. */
  within: Track | undefined;

  /** Makes a trace that is not open yet. */
  constructor({ kernels = true }: TraceOptions = {}) {
    this.hasKernels = kernels;
  }

  /** Hands all events from now on to a sink. */
  open(sink: TraceSink, { rank, worldSize, run }: TraceIdentity): void {
    this.#sink = sink;
    this.#rank = rank;
    const origin = originOfElapsed();
    this.#write({ name: IDENTITY_EVENT, ph: "M", pid: rank, args: { rank, worldSize, run, origin } });
    this.#write({ name: "process_name", ph: "M", pid: rank, args: { name: `rank ${rank}` } });
    this.#write({ name: "process_sort_index", ph: "M", pid: rank, args: { sort_index: rank } });
    for (const [tid, name] of TRACKS.entries()) {
      this.#write({ name: "thread_name", ph: "M", pid: rank, tid, args: { name } });
      this.#write({ name: "thread_sort_index", ph: "M", pid: rank, tid, args: { sort_index: tid } });
    }
    this.flush();
  }

  /** Microseconds, as events have them. */
  now(): number {
    return Math.round(performance.now() * 1e6) / 1e3;
  }

  /** Begins a span. See Note [Spans nest]. */
  begin(track: Track, cat: TraceCategory, name: string, args: TraceFacts): Span {
    if (this.#sink === undefined) return UNRECORDED;
    const spans = this.#spans[track];
    const tid = TRACKS.indexOf(track);
    this.#write({ name, cat, ph: "B", pid: this.#rank, ts: this.now(), tid, args });
    const end = (): void => {
      const place = spans.lastIndexOf(span);
      if (place < 0) return;
      for (const _ of spans.splice(place)) this.#write({ ph: "E", pid: this.#rank, ts: this.now(), tid });
    };
    const span: Span = { end, [Symbol.dispose]: end };
    spans.push(span);
    return span;
  }

  /** Records a kernel's call. @param when its begin and end, by {@link now} */
  kernel(
    track: Track,
    name: string,
    { begin, end }: { readonly begin: number; readonly end: number },
    work: KernelFacts,
  ): void {
    const tid = TRACKS.indexOf(this.within ?? track);
    const dur = Math.round((end - begin) * 1e3) / 1e3;
    this.#sink?.kernel(name, { tid, ts: begin, dur }, work);
  }

  /** Makes the events so far survive if this process is killed. */
  flush(): void {
    this.#sink?.flush();
  }

  /** Ends all open spans, and the trace. */
  close(): void {
    for (const track of TRACKS) this.#spans[track][0]?.end();
    const sink = this.#sink;
    this.#sink = undefined;
    sink?.close();
  }

  #write(event: TraceRecord): void {
    this.#sink?.event(event);
  }
}
