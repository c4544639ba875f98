/**
 * The numbers of a run that goes on: of `metrics.jsonl` only the lines that have come since the last look are read.
 *
 * @module
 */
import { openReadable, pathKind, type ReadableFile } from "../../runtime/files.ts";
import { LineReader } from "../../runtime/lines.ts";
import { MOST_POINTS, type RunSeries, SeriesLines } from "../series.ts";

/** Number of the last bytes read that are kept. If they differ at the next look, the file was replaced, and is read anew. */
const KNOWN_BYTES = 256;

/** A file of metrics that grows. */
export class GrowingSeries {
  readonly #path: string;
  readonly #most: number;
  #series: SeriesLines;
  #lines = new LineReader();
  /** Bytes that were read. */
  #read = 0;
  /** The last ones of these. */
  #known: Uint8Array = new Uint8Array();

  /** @param most most points of the series */
  constructor(path: string, most: number = MOST_POINTS) {
    [this.#path, this.#most, this.#series] = [path, most, new SeriesLines(most)];
  }

  /** The numbers so far; undefined if there is no file. A last line without its end counts when its end has come. */
  read(): RunSeries | undefined {
    if (pathKind(this.#path) !== "file") return undefined;
    using file = openReadable(this.#path);
    if (!this.#isContinued(file)) {
      [this.#series, this.#lines, this.#read] = [new SeriesLines(this.#most), new LineReader(), 0];
    }
    for (const piece of file.pieces(this.#read, file.byteLength - this.#read)) {
      for (const line of this.#lines.push(piece)) this.#series.add(line);
      this.#read += piece.length;
    }
    this.#known = new Uint8Array(Math.min(KNOWN_BYTES, this.#read));
    file.read(this.#read - this.#known.length, this.#known);
    return this.#series.series();
  }

  #isContinued(file: ReadableFile): boolean {
    if (file.byteLength < this.#read) return false;
    const found = new Uint8Array(this.#known.length);
    file.read(this.#read - found.length, found);
    return found.every((byte, i) => byte === this.#known[i]);
  }
}
