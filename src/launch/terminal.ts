/**
 * The launcher's two output streams. Log lines go through; where a stream is a terminal, one status line stays below
 * them. Nothing else in a run writes to the terminal.
 *
 * @module
 */

/** What the terminal needs of an output stream. */
export interface TextSink {
  /** Whether a person sees it directly. */
  readonly isTTY?: boolean | undefined;
  readonly columns?: number | undefined;
  /** Writes; false asks the caller to wait for `drain`. */
  write(text: string): boolean;
}

/** The two streams of a command. */
export type StreamName = "stdout" | "stderr";

/** Log lines above, a status line below. */
export class StatusTerminal {
  readonly #sinks: Readonly<Record<StreamName, TextSink>>;
  /** The stream that shows the status; undefined where neither is a terminal. */
  readonly #statusSink: TextSink | undefined;
  #status = "";

  constructor(stdout: TextSink, stderr: TextSink) {
    this.#sinks = { stdout, stderr };
    this.#statusSink = [stderr, stdout].find((sink) => sink.isTTY === true);
  }

  /** Whether a status is shown at all. */
  get showsStatus(): boolean {
    return this.#statusSink !== undefined;
  }

  /** Writes log lines, given without line breaks; false where the reader is slower than the writer. */
  lines(stream: StreamName, lines: readonly string[]): boolean {
    if (lines.length === 0) return true;
    const sink = this.#sinks[stream];
    const text = `${lines.join("\n")}\n`;
    if (sink.isTTY !== true || this.#status === "") return sink.write(text);
    // The other stream may be the one that holds the status: erase there, write here, draw there again.
    this.#statusSink?.write(eraseLine);
    const more = sink.write(text);
    this.#draw();
    return more;
  }

  /** Shows a status in place of the last one; an empty one takes it away. */
  status(text: string): void {
    const line = printable(text);
    if (this.#statusSink === undefined || line === this.#status) return;
    this.#statusSink.write(eraseLine);
    this.#status = line;
    this.#draw();
  }

  #draw(): void {
    const sink = this.#statusSink;
    // One column is left free: a full last column makes some terminals begin a new line.
    sink?.write([...this.#status].slice(0, (sink.columns || 80) - 1).join(""));
  }
}

const eraseLine = "\r\u001b[2K";

/** A line break or an escape inside a status would spoil the terminal. */
function printable(text: string): string {
  return [...text].map((letter) => letter < " " || letter === "\u007f" ? " " : letter).join("");
}
