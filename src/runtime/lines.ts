/**
 * Splits a stream of bytes into complete lines, so that outputs of several ranks never mix within a line.
 *
 * @module
 */
import { openReadable } from "./files.ts";

/** Longest line that is held back until its end. */
const longestLine = 1 << 20;

/** The lines of one stream. */
export class LineReader {
  readonly #decoder = new TextDecoder();
  #rest = "";

  /** Takes bytes and returns the lines that they complete, without line breaks. */
  push(bytes: Uint8Array): string[] {
    const text = this.#rest + this.#decoder.decode(bytes, { stream: true });
    const lines = text.split("\n");
    this.#rest = lines.pop() ?? "";
    if (this.#rest.length > longestLine) {
      lines.push(this.#rest);
      this.#rest = "";
    }
    return lines.map(withoutReturn);
  }

  /** Ends the stream; returns the last line if it has no line break. */
  end(): string[] {
    const last = this.#rest + this.#decoder.decode();
    this.#rest = "";
    return last === "" ? [] : [withoutReturn(last)];
  }
}

function withoutReturn(line: string): string {
  return line.endsWith("\r") ? line.slice(0, -1) : line;
}

/** The lines of a file, of which a piece at a time is in memory. @throws {FileError} if it cannot be read */
export function* linesOf(path: string): Generator<string> {
  using file = openReadable(path);
  const lines = new LineReader();
  for (const piece of file.pieces(0, file.byteLength)) yield* lines.push(piece);
  yield* lines.end();
}
