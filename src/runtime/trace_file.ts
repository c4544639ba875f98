/**
 * A rank's trace as a file that Perfetto and chrome://tracing read: the trace event format's array of JSON, an event a line.
 * After every write the file lacks only its last bracket, which those programs do not need, so a killed rank leaves its events.
 * The file gets its name when the trace is closed.
 *
 * @module
 */
import { makeDirectory, openWritable, removeQuietly, renamePath, type WritableFile } from "./files.ts";
import { traceFileOf, type TraceRecord, type TraceSink, UNFINISHED } from "./trace.ts";

/** Events that are kept before a write. They are made texts together: one by one between kernels, each takes several times as long. */
const KEPT_EVENTS = 256;

/** Bytes for the texts of that many events, mostly. */
const KEPT_BYTES = 2 ** 16;

/** Most bytes of a letter in UTF-8. */
const BYTES_A_LETTER = 3;

/**
 * Opens the file of a rank, replacing an earlier run's.
 *
 * @param report receives a line if the file cannot be written; the run goes on
 * @throws {FileError} if the file cannot be made
 */
export function openTraceFile(folder: string, rank: number, report: (text: string) => void): TraceSink {
  makeDirectory(folder);
  const path = traceFileOf(folder, rank);
  const file = openWritable(`${path}${UNFINISHED}`, "create");
  removeQuietly(path);
  return new TraceFile(path, file, report);
}

class TraceFile implements TraceSink {
  /** Undefined after a failure, which ends the trace but not the run. */
  #file: WritableFile | undefined;
  readonly #path: string;
  readonly #report: (text: string) => void;
  #events: TraceRecord[] = [];
  readonly #encoder = new TextEncoder();
  /** Bytes of the kept text, made once: new ones for each write would be collected in steps. */
  #bytes = new Uint8Array(KEPT_BYTES);
  #hasEvents = false;

  constructor(path: string, file: WritableFile, report: (text: string) => void) {
    this.#path = path;
    this.#file = file;
    this.#report = report;
  }

  event(event: TraceRecord): void {
    if (this.#file === undefined) return;
    this.#events.push(event);
    if (this.#events.length >= KEPT_EVENTS) this.flush();
  }

  flush(): void {
    let text = "";
    for (const event of this.#events) {
      text += `${this.#hasEvents ? ",\n" : "[\n"}${lineOf(event)}`;
      this.#hasEvents = true;
    }
    this.#events.length = 0;
    this.#write(text);
  }

  close(): void {
    this.flush();
    this.#write("\n]\n");
    if (this.#file === undefined) return;
    try {
      this.#file.close();
      renamePath(`${this.#path}${UNFINISHED}`, this.#path);
      this.#file = undefined;
    } catch (error) {
      this.#giveUp(error);
    }
  }

  #write(text: string): void {
    if (this.#file === undefined || text === "") return;
    const most = BYTES_A_LETTER * text.length;
    if (most > this.#bytes.length) this.#bytes = new Uint8Array(most);
    try {
      this.#file.write(this.#bytes.subarray(0, this.#encoder.encodeInto(text, this.#bytes).written));
    } catch (error) {
      this.#giveUp(error);
    }
  }

  #giveUp(error: unknown): void {
    this.#file = undefined;
    const why = error instanceof Error ? error.message : String(error);
    this.#report(`The trace ends here, with what is in '${this.#path}${UNFINISHED}': ${why}`);
  }
}

/** An event as JSON. Kernels and ends of spans, which are most events, are put together by hand: that takes half the time. */
function lineOf(event: TraceRecord): string {
  const { ph, pid, tid, ts, dur, name, args } = event;
  if (ph === "E") return `{"ph":"E","pid":${pid},"tid":${tid},"ts":${ts}}`;
  if (ph !== "X") return JSON.stringify(event);
  const facts = `{"flops":${args?.["flops"]},"bytes":${args?.["bytes"]}}`;
  return `{"name":"${name}","cat":"kernel","ph":"X","pid":${pid},"tid":${tid},"ts":${ts},"dur":${dur},"args":${facts}}`;
}
