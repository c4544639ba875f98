/**
 * One lane of a stream: the rows of its windows, one window after the other, in a shuffled order within each.
 *
 * Note [Blocks]: rows are made of a block of tokens. Of samples that stay apart a block is a window. Of one stream it is what was left of
 * the windows before, less than a row, and as many windows as make a row at least; so no token is lost between windows, and a block is
 * found again by the window and the token that it begins with.
 *
 * @module
 */
import { at } from "../../at.ts";
import { ConfigError } from "../../errors.ts";
import { keyOf, Permutation } from "../../random.ts";
import type { MicroBatch } from "../micro_batch.ts";
import { tokensInMemory, type TokenStream } from "../token_stream.ts";
import type { Packing } from "../samples/rows.ts";
import { rowsOf, type TokenRowOptions, type TokenRows } from "../token_rows.ts";
import type { WindowSource, WindowTokens } from "./window_source.ts";

/** A place in a lane. */
export interface LanePlace {
  /** Rows given since the start of training. */
  readonly given: number;
  /** Full passes over the lane before the present block. */
  readonly epoch: number;
  /** The window that the block begins with, counted from 0 in the lane's epoch. */
  readonly window: number;
  /** Tokens of that window before the block. */
  readonly skip: number;
  /** Rows of the block that were given. */
  readonly row: number;
}

/** Options for making rows of windows. */
export interface LaneOptions extends TokenRowOptions {
  readonly sequenceLength: number;
  readonly packing: Packing;
  readonly seed: number;
}

/** Rows of some windows, in their order. */
interface LaneBlock {
  readonly rows: TokenRows;
  readonly order: Permutation;
  /** The place of the next block. */
  readonly next: Pick<LanePlace, "epoch" | "window" | "skip">;
}

/** Most epochs of a key's permutations times windows: an epoch has fewer windows than this. */
const MOST_WINDOWS = 2 ** 26;
const START: LanePlace = { given: 0, epoch: 0, window: 0, skip: 0, row: 0 };

/** The rows of a lane. */
export class Lane {
  readonly #source: WindowSource;
  readonly #lane: number;
  readonly #options: LaneOptions;
  readonly #key: number;
  #place: LanePlace;
  #block: LaneBlock | undefined;
  /** The last window that was tokenized: the next block may begin in it. */
  #last: { readonly epoch: number; readonly window: number; readonly tokens: WindowTokens } | undefined;

  /** @param place where it goes on. @default its beginning */
  constructor(source: WindowSource, lane: number, options: LaneOptions, place: LanePlace = START) {
    this.#source = source;
    this.#lane = lane;
    this.#options = options;
    this.#place = place;
    this.#key = keyOf(options.seed, "order of a window's rows");
  }

  /** The next row's place. */
  get place(): LanePlace {
    return this.#place;
  }

  /** Passes over rows until the next one is the one before which `given` were given. */
  async moveTo(given: number): Promise<void> {
    while (this.#place.given < given) {
      const { rows: { numRows } } = await this.#present();
      const step = Math.min(given - this.#place.given, numRows - this.#place.row);
      this.#place = { ...this.#place, given: this.#place.given + step, row: this.#place.row + step };
    }
  }

  /** Gives the next row. */
  async next(): Promise<MicroBatch> {
    const { rows, order } = await this.#present();
    const row = order.at(this.#place.row);
    this.#place = { ...this.#place, given: this.#place.given + 1, row: this.#place.row + 1 };
    return await rows.load([row]);
  }

  /** The block of the next row. */
  async #present(): Promise<LaneBlock> {
    for (;;) {
      this.#block ??= await this.#read();
      if (this.#place.row < this.#block.rows.numRows) return this.#block;
      this.#place = { ...this.#place, ...this.#block.next, row: 0 };
      this.#block = undefined;
    }
  }

  /** Reads the block of the place, or the first one behind it that has a row. */
  async #read(): Promise<LaneBlock> {
    let { epoch, window, skip } = this.#place;
    for (let epochs = 0; epochs < 2;) {
      const block = this.#options.packing === "wrapped"
        ? await this.#readStream(epoch, window, skip)
        : await this.#readSamples(epoch, window);
      if (block !== undefined) {
        this.#place = { ...this.#place, epoch, ...block.at };
        return block;
      }
      [epoch, window, skip] = [epoch + 1, 0, 0];
      epochs++;
    }
    const { name, files } = this.#source;
    const expected =
      `text or rows for a sample of sequenceLength ${this.#options.sequenceLength} in each part of the data`;
    const got = `none in a part of ${files.slice(0, 3).map((file) => `'${file}'`).join(", ")}: leave out 'streaming'`;
    throw new ConfigError([{ path: name, expected, got }]);
  }

  /** The rows of a window, or of the first one behind it that has any; undefined at the end of the epoch. */
  async #readSamples(epoch: number, from: number): Promise<LaneBlock & BlockStart | undefined> {
    for (let window = from;; window++) {
      const tokens = await this.#tokensOf(epoch, window);
      if (tokens === undefined) return undefined;
      if (tokens === "empty") continue;
      const next = { epoch, window: window + 1, skip: 0 };
      return { ...this.#blockOf(tokens, epoch, window), next, at: { window, skip: 0 } };
    }
  }

  /** The rows of a stream from a token of a window on; undefined if the epoch ends before there is one. */
  async #readStream(epoch: number, first: number, skip: number): Promise<LaneBlock & BlockStart | undefined> {
    const { sequenceLength } = this.#options;
    const parts: TokenStream[] = [];
    const begins = [0];
    for (let window = first; lastOf(begins) - skip <= sequenceLength; window++) {
      const tokens = await this.#tokensOf(epoch, window);
      if (tokens === undefined) return undefined;
      if (tokens !== "empty" && !("lengthOf" in tokens)) parts.push(tokens);
      begins.push(lastOf(begins) + (tokens === "empty" ? 0 : tokens.length));
    }
    const all = new Int32Array(lastOf(begins));
    let filled = 0;
    for (const part of parts) {
      await part.read(0, all.subarray(filled, filled + part.length));
      filled += part.length;
    }
    const own = all.subarray(skip);
    const block = this.#blockOf(tokensInMemory(own, this.#source.fingerprint), epoch, first);
    // The last token of the rows is the first of the next ones, which it has only been predicted for.
    const end = skip + block.rows.numRows * sequenceLength;
    const window = begins.findLastIndex((begin) => begin <= end);
    const next = { epoch, window: first + window, skip: end - at(begins, window, "begin") };
    return { ...block, next, at: { window: first, skip } };
  }

  #blockOf(tokens: WindowTokens, epoch: number, window: number): Pick<LaneBlock, "rows" | "order"> {
    const { sequenceLength, packing } = this.#options;
    const rows = rowsOf(tokens, sequenceLength, packing, this.#options);
    const number = this.#source.numberOf(this.#lane, window);
    return { rows, order: new Permutation(rows.numRows, this.#key, epoch * MOST_WINDOWS + number) };
  }

  async #tokensOf(epoch: number, window: number): Promise<WindowTokens | "empty" | undefined> {
    if (this.#last?.epoch === epoch && this.#last.window === window) return this.#last.tokens;
    const tokens = await this.#source.read(epoch, this.#source.numberOf(this.#lane, window));
    this.#last = tokens === undefined || tokens === "empty" ? undefined : { epoch, window, tokens };
    return tokens;
  }
}

/** The place that a block begins at. */
interface BlockStart {
  readonly at: Pick<LanePlace, "window" | "skip">;
}

function lastOf(numbers: readonly number[]): number {
  return at(numbers, numbers.length - 1, "number");
}
