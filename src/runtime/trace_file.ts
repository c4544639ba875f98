/**
 * A rank's trace as a file that Perfetto and chrome://tracing read: the trace event format's array of JSON, an event a line.
 * After every write the file lacks only its last bracket, which those programs do not need, so a killed rank leaves its events.
 * The file gets its name when the trace is closed.
 *
 * @module
 */
import { makeDirectory, openWritable, removeQuietly, renamePath, type WritableFile } from "./files.ts";
import { traceFileOf, type TraceRecord, type TraceSink, UNFINISHED } from "./trace.ts";

/** Largest number of bytes that are buffered before a write. */
const KEPT_BYTES = 2 ** 16;

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
  #text = "";
  #hasEvents = false;

  constructor(path: string, file: WritableFile, report: (text: string) => void) {
    this.#path = path;
    this.#file = file;
    this.#report = report;
  }

  event(event: TraceRecord): void {
    if (this.#file === undefined) return;
    this.#text += `${this.#hasEvents ? ",\n" : "[\n"}${JSON.stringify(event)}`;
    this.#hasEvents = true;
    if (this.#text.length >= KEPT_BYTES) this.flush();
  }

  flush(): void {
    const [file, text] = [this.#file, this.#text];
    this.#text = "";
    if (file === undefined || text === "") return;
    try {
      file.write(text);
    } catch (error) {
      this.#giveUp(error);
    }
  }

  close(): void {
    this.#text += "\n]\n";
    this.flush();
    if (this.#file === undefined) return;
    try {
      this.#file.close();
      renamePath(`${this.#path}${UNFINISHED}`, this.#path);
      this.#file = undefined;
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
