/**
 * Files that can only be read from their beginning, as windows one behind the other.
 *
 * Invariant: no more than a window and a row are in memory. A window that lies further back is found by reading from the beginning again.
 *
 * @module
 */
import { isJsonObject } from "../../json.ts";
import { unpackedPieces } from "../../runtime/unpack.ts";
import type { RowPlace } from "../rows/row.ts";
import { rowsOf } from "../rows/rows.ts";
import { type StreamItem, textPiece } from "./read_window.ts";
import { cutOf } from "./windows.ts";

/** Options for reading files from their beginning. */
export interface SequentialOptions {
  readonly files: readonly string[];
  /** The columns that are read, of formats that keep columns apart. */
  readonly columns: readonly string[];
  /** Files that hold one document of text each. */
  readonly isText: (file: string) => boolean;
  /** Characters of a window, about. */
  readonly windowBytes: number;
  /** The data's name in errors. */
  readonly name: string;
}

/** The windows of files, in order. */
export class SequentialWindows {
  readonly #options: SequentialOptions;
  #items: AsyncGenerator<StreamItem> | undefined;
  /** The number of the window that is read next. */
  #next = 0;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(options: SequentialOptions) {
    this.#options = options;
  }

  /** The contents of a window; undefined behind the last. Calls follow each other, as all read one place. */
  read(number: number): Promise<readonly StreamItem[] | undefined> {
    const items = this.#turn.then(() => this.#read(number));
    this.#turn = items.catch(() => undefined);
    return items;
  }

  async #read(number: number): Promise<readonly StreamItem[] | undefined> {
    if (number < this.#next || this.#items === undefined) await this.#rewind();
    for (;;) {
      const items = await this.#window(number === this.#next);
      if (items === undefined || this.#next++ === number) return items;
    }
  }

  /** Gives up the open file. */
  close(): void {
    void this.#items?.return(undefined);
    this.#items = undefined;
  }

  async #rewind(): Promise<void> {
    await this.#items?.return(undefined);
    this.#items = itemsOf(this.#options);
    this.#next = 0;
  }

  /** The items of the next window, of which none are kept unless `keeps`. */
  async #window(keeps: boolean): Promise<readonly StreamItem[] | undefined> {
    const items: StreamItem[] = [];
    let [size, count] = [0, 0];
    while (size < this.#options.windowBytes) {
      const next = await this.#items?.next();
      if (next === undefined || next.done === true) break;
      size += sizeOf(next.value);
      count++;
      if (keeps) items.push(next.value);
    }
    return count === 0 ? undefined : items;
  }
}

/** Characters of the texts of an item; one more, so that many empty ones fill a window too. */
function sizeOf(item: StreamItem): number {
  return 1 + ("text" in item ? item.text.length : "value" in item ? charactersOf(item.value) : 0);
}

function charactersOf(value: unknown): number {
  if (typeof value === "string") return value.length;
  const inside = Array.isArray(value) ? value : isJsonObject(value) ? Object.values(value) : [];
  let sum = 1;
  for (const one of inside) sum += charactersOf(one);
  return sum;
}

async function* itemsOf(options: SequentialOptions): AsyncGenerator<StreamItem> {
  for (const file of options.files) {
    if (options.isText(file)) yield* piecesOfText(file, options.windowBytes);
    else yield* rowsOf(file, options.name, options.columns);
  }
}

/** A text in pieces of about a window, cut at the ends of lines. */
async function* piecesOfText(file: string, windowBytes: number): AsyncGenerator<StreamItem> {
  let [held, line] = [new Uint8Array(0), 1];
  const place = (): RowPlace => ({ file, line });
  for await (const piece of unpackedPieces(file)) {
    let bytes = new Uint8Array(held.length + piece.length);
    bytes.set(held);
    bytes.set(piece, held.length);
    // The end of a line is looked for in what is there; a piece waits for more where there is none.
    while (bytes.length > 2 * windowBytes) {
      const cut = windowBytes + cutOf(bytes.subarray(windowBytes));
      yield textPiece(bytes.subarray(0, cut), place(), false);
      line += countOfLines(bytes.subarray(0, cut));
      bytes = bytes.slice(cut);
    }
    held = bytes;
  }
  yield textPiece(held, place(), true);
}

function countOfLines(bytes: Uint8Array): number {
  let lines = 0;
  for (const byte of bytes) if (byte === 10) lines++;
  return lines;
}
