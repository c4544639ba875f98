/**
 * The two output streams of this process. Log lines are passed through; on a terminal, one status line stays below them. The
 * process that shows a status, the launcher or a rank on its own, must write everything to the terminal itself.
 *
 * Permissions on Deno: none; NO_COLOR, TERM, CI and COLUMNS are used if they may be read.
 *
 * @module
 */
import process from "node:process";
import { stripVTControlCharacters, styleText } from "node:util";
import { codeOf } from "./errno.ts";
import { type Environment, processEnvironment } from "./env.ts";

/** The two streams of a command. */
export type OutputName = "stdout" | "stderr";

export interface TerminalManners {
  /** A line may be erased and written anew. */
  readonly redraws: boolean;
  readonly colors: boolean;
}

/** The abilities that the user's variables allow. */
export function terminalManners(environment: Environment = processEnvironment()): TerminalManners {
  const isDumb = environment.text("TERM") === "dumb";
  return { redraws: !isDumb && !environment.flag("CI"), colors: !isDumb && !environment.flag("NO_COLOR") };
}

export function styled(style: "dim" | "red" | "yellow", text: string, hasColors: boolean): string {
  return hasColors ? styleText(style, text, { validateStream: false }) : text;
}

/** Text without colors and other control sequences. */
export function unstyled(text: string): string {
  return stripVTControlCharacters(text);
}

/** Text and facts of one output stream. */
export interface Terminal {
  write(text: string): void;
  /** True if the output is a terminal. */
  readonly isTerminal: boolean;
  /** True if text may have colors, here or in a launcher. */
  readonly hasColors: boolean;
  /** Width in characters: the terminal's, else COLUMNS, else 80. */
  columns(): number;
}

/** Standard output or standard error. */
export function terminal(stream: OutputName): Terminal {
  const out = process[stream];
  const environment = processEnvironment();
  const isTerminal = out.isTTY === true;
  return {
    write: (text) => void out.write(text),
    isTerminal,
    hasColors: environment.flag("FULLYSHARD_COLOR") || (isTerminal && terminalManners(environment).colors),
    columns: () => out.columns || environment.integer("COLUMNS") || 80,
  };
}

/** The part of an output stream that a status line needs. */
export interface TextSink {
  /** True if it is a terminal. */
  readonly isTTY?: boolean | undefined;
  readonly columns?: number | undefined;
  /** Writes; false asks the caller to wait for `drain`. */
  write(text: string): boolean;
  /** Reports errors that come after a write. */
  on?(event: "error", listener: (error: Error) => void): unknown;
}

/** Log lines above, a status line below. */
export class StatusTerminal {
  readonly #sinks: Readonly<Record<OutputName, TextSink>>;
  readonly #manners: TerminalManners;
  /** The stream that shows the status; undefined if neither is a terminal that redraws. */
  readonly #statusSink: TextSink | undefined;
  readonly #closed = new Set<TextSink>();
  /**
   * Called once, when the reader of a stream is gone; later text is dropped. Without it, writing to a pipe without a reader
   * throws, while text for a closed terminal is dropped, as SIGHUP reports that.
   */
  onClosed: ((what: "pipe" | "terminal" | "full", error: Error) => void) | undefined;
  #status = "";
  #isDrawn = false;

  constructor(
    stdout: TextSink = process.stdout,
    stderr: TextSink = process.stderr,
    manners: TerminalManners = terminalManners(),
  ) {
    this.#sinks = { stdout, stderr };
    this.#manners = manners;
    this.#statusSink = manners.redraws ? [stderr, stdout].find((sink) => sink.isTTY === true) : undefined;
    for (const sink of [stdout, stderr]) sink.on?.("error", (error) => this.#failed(sink, error));
  }

  /** True if a status is shown. */
  get showsStatus(): boolean {
    return this.#statusSink !== undefined;
  }

  /** True if a stream may have colors. */
  hasColors(stream: OutputName): boolean {
    return this.#manners.colors && this.#sinks[stream].isTTY === true;
  }

  /** Writes log lines, given without line breaks; false if the reader is slower than the writer. */
  lines(stream: OutputName, lines: readonly string[]): boolean {
    if (lines.length === 0) return true;
    const sink = this.#sinks[stream];
    this.#erase();
    const more = this.#write(sink, `${lines.join("\n")}\n`);
    // Lines behind `| tee` reach the terminal later than this stream's text, so the status is drawn with the next update.
    if (sink.isTTY === true) this.#draw();
    return more;
  }

  /** Shows a status in place of the last one; an empty text removes it. */
  status(text: string): void {
    const line = printable(text);
    if (line === this.#status && this.#isDrawn) return;
    this.#erase();
    this.#status = line;
    this.#draw();
  }

  #erase(): void {
    if (this.#isDrawn && this.#statusSink !== undefined) this.#write(this.#statusSink, "\r\u001b[2K");
    this.#isDrawn = false;
  }

  #write(sink: TextSink, text: string): boolean {
    if (this.#closed.has(sink)) return true;
    try {
      return sink.write(text);
    } catch (error) {
      this.#failed(sink, error);
      return true;
    }
  }

  /** Bun throws if the reader is gone, as behind `| head`; other runtimes report it later. */
  #failed(sink: TextSink, error: unknown): void {
    if (!(error instanceof Error)) throw error;
    const code = codeOf(error);
    const isHungUp = sink.isTTY === true && (code === "EIO" || code === "EPIPE");
    // The disk is full, or the file has reached `ulimit -f`.
    const isFull = code === "ENOSPC" || code === "EDQUOT" || code === "EFBIG";
    if (!isHungUp && ((code !== "EPIPE" && !isFull) || this.onClosed === undefined)) throw error;
    if (this.#closed.has(sink)) return;
    const isFirst = this.#closed.size === 0;
    this.#closed.add(sink);
    if (isFirst || isFull) this.onClosed?.(isHungUp ? "terminal" : isFull ? "full" : "pipe", error);
  }

  #draw(): void {
    const sink = this.#statusSink;
    if (sink === undefined || this.#status === "") return;
    // One column stays empty: after a full last column some terminals begin a new line.
    this.#write(sink, fitted(this.#status, (sink.columns || 80) - 1));
    this.#isDrawn = true;
  }
}

/** The first fields of a status that fit; two spaces separate fields. */
function fitted(status: string, width: number): string {
  const [first, ...others] = status.split(/ {2,}/);
  let text = `${first}`;
  for (const field of others) {
    if (text.length + 2 + field.length > width) break;
    text += `  ${field}`;
  }
  return [...text].slice(0, width).join("");
}

/** Replaces control characters, which would spoil the status line. */
function printable(text: string): string {
  return [...text].map((letter) => letter < " " || (letter >= "\u007f" && letter < "\u00a0") ? " " : letter).join("");
}
