/**
 * A rank's trace as a file that Perfetto and chrome://tracing read: the trace event format's array of JSON, an event a line. While
 * the run is on there are two files:
 * 1. the file of lines, which lacks only its last bracket; those programs do not need it. It grows when a step begins;
 * 2. the tail, with the events since then. A rank that is killed leaves both, so all its events.
 *
 * When the trace is closed, the file of lines gets its name, and the tail is removed.
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
  traceTailOf,
  UNFINISHED,
} from "./trace.ts";
import { TraceTail } from "./trace_tail.ts";

/**
 * Opens the files of a rank, replacing an earlier run's.
 *
 * @param report receives a line if a file cannot be written; the run goes on
 * @throws {FileError} if a file cannot be made
 */
export function openTraceFile(folder: string, rank: number, report: (text: string) => void): TraceSink {
  makeDirectory(folder);
  const path = traceFileOf(folder, rank);
  const lines = openWritable(`${path}${UNFINISHED}`, "create");
  const tail = openWritable(traceTailOf(path), "create");
  removeQuietly(path);
  return new TraceFile(path, rank, { lines, tail }, report);
}

/** The files of a trace that is being written. */
interface OpenFiles {
  readonly lines: WritableFile;
  readonly tail: WritableFile;
}

class TraceFile implements TraceSink {
  /** Undefined after a failure, which ends the trace but not the run. */
  #files: OpenFiles | undefined;
  readonly #path: string;
  readonly #rank: number;
  readonly #report: (text: string) => void;
  readonly #tail = new TraceTail();
  readonly #encoder = new TextEncoder();
  /** Bytes of the file of lines. */
  #byteLength = 0;

  constructor(path: string, rank: number, files: OpenFiles, report: (text: string) => void) {
    this.#path = path;
    this.#rank = rank;
    this.#files = files;
    this.#report = report;
  }

  event(event: TraceRecord): void {
    if (this.#files === undefined) return;
    if (this.#tail.isFull || (event.cat === "step" && event.ph === "B")) this.#writeLines(this.#files);
    this.#tail.event(event);
  }

  kernel(name: string, times: KernelTimes, work: KernelFacts): void {
    if (this.#files === undefined) return;
    if (this.#tail.isFull) this.#writeLines(this.#files);
    this.#tail.kernel(name, times, work);
  }

  flush(): void {
    const files = this.#files;
    if (files === undefined) return;
    // The first events say of which rank a file is, so they are lines at once.
    if (this.#byteLength === 0) return this.#writeLines(files);
    const unsaved = this.#tail.unsaved();
    if (unsaved !== undefined) this.#try(() => files.tail.write(unsaved.bytes, unsaved.place));
  }

  close(): void {
    if (this.#files !== undefined) this.#writeLines(this.#files, "\n]\n");
    // Not if that write has failed.
    const files = this.#files;
    if (files === undefined) return;
    this.#try(() => {
      const { lines, tail } = files;
      lines.close();
      renamePath(`${this.#path}${UNFINISHED}`, this.#path);
      tail.close();
      removeQuietly(traceTailOf(this.#path));
      this.#files = undefined;
    });
  }

  /** Writes the lines of all events of the tail. */
  #writeLines({ lines }: OpenFiles, end = ""): void {
    const between = this.#byteLength === 0 ? "[\n" : ",\n";
    const texts = this.#tail.lines(this.#rank);
    const bytes = this.#encoder.encode(`${texts.length === 0 ? "" : between}${texts.join(",\n")}${end}`);
    this.#try(() => lines.write(bytes));
    this.#byteLength += bytes.length;
    this.#tail.clear(this.#byteLength);
  }

  #try(write: () => void): void {
    try {
      write();
    } catch (error) {
      this.#files = undefined;
      const why = error instanceof Error ? error.message : String(error);
      this.#report(`The trace ends here, with what is in '${this.#path}${UNFINISHED}': ${why}`);
    }
  }
}
