/**
 * A rank's trace as a file that Perfetto and chrome://tracing read: the trace event format's array of JSON, an event a line.
 * After every write the file lacks only its last bracket, which those programs do not need, so a killed rank leaves its events.
 * The file gets its name when the trace is closed.
 *
 * @module
 */
import { makeDirectory, openWritable, removeQuietly, renamePath, type WritableFile } from "./files.ts";
import {
  type KernelFacts,
  type KernelTimes,
  traceFileOf,
  type TraceRecord,
  type TraceSink,
  UNFINISHED,
} from "./trace.ts";
import { TraceText } from "./trace_text.ts";

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
  return new TraceFile(path, file, new TraceText(rank), report);
}

class TraceFile implements TraceSink {
  /** Undefined after a failure, which ends the trace but not the run. */
  #file: WritableFile | undefined;
  readonly #path: string;
  readonly #report: (text: string) => void;
  readonly #text: TraceText;

  constructor(path: string, file: WritableFile, text: TraceText, report: (text: string) => void) {
    this.#path = path;
    this.#file = file;
    this.#text = text;
    this.#report = report;
  }

  event(event: TraceRecord): void {
    if (this.#file === undefined) return;
    this.#text.event(event);
    if (this.#text.isFull) this.flush();
  }

  kernel(name: string, times: KernelTimes, work: KernelFacts): void {
    if (this.#file === undefined) return;
    this.#text.kernel(name, times, work);
    if (this.#text.isFull) this.flush();
  }

  flush(): void {
    this.#write(this.#text.take());
  }

  close(): void {
    this.flush();
    this.#write(this.#text.end());
    if (this.#file === undefined) return;
    try {
      this.#file.close();
      renamePath(`${this.#path}${UNFINISHED}`, this.#path);
      this.#file = undefined;
    } catch (error) {
      this.#giveUp(error);
    }
  }

  #write(text: Uint8Array): void {
    if (this.#file === undefined || text.length === 0) return;
    try {
      this.#file.write(text);
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
