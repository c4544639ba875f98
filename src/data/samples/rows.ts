/**
 * Plans which samples lie in which rows, from lengths alone: every rank makes the same full plan, and reads its own rows.
 *
 * Packing is best-fit decreasing, as TRL's `pack_dataset` does it: samples from the longest to the shortest, each into the row that
 * it fills best, of rows that it fills alike into the one that has been so for longest.
 *
 * @module
 */
import { at } from "../../at.ts";
import { NumberSet } from "./number_set.ts";

/**
 * The ways in which samples become rows, by TRL's names:
 * - `none`: a row for each sample, cut at the sequence length, as long as the longest of its micro-batch;
 * - `wrapped`: one stream, cut into rows anywhere; tokens see the documents before their own that are in their row;
 * - `bfd`: several samples in a row, which do not see each other; what is longer than a row is cut off and left out;
 * - `bfd-split`: the same, but what is longer than a row goes into several, as samples of their own.
 */
export const PACKINGS = ["none", "wrapped", "bfd", "bfd-split"] as const;
/** One of {@link PACKINGS}. */
export type Packing = typeof PACKINGS[number];

/** A sample, or a part of one, in a row. */
export interface RowPart {
  /** The sample's number. */
  readonly sample: number;
  /** Tokens of the sample before the part. */
  readonly start: number;
  /** Tokens of the part. */
  readonly length: number;
}

/** All rows of some samples. */
export class Rows {
  /** Number of rows. */
  readonly numRows: number;
  /** Tokens in rows. */
  readonly tokens: number;
  /** Samples that were cut off. */
  readonly cutSamples: number;
  /** Tokens left out. */
  readonly cutTokens: number;
  readonly #sequenceLength: number;
  /** Numbers of the parts of all rows, row by row; where each row's begin, and all end. */
  readonly #order: Uint32Array;
  readonly #begins: Uint32Array;
  readonly #samples: Uint32Array;
  readonly #starts: Uint32Array;
  readonly #lengths: Uint32Array;

  /**
   * Plans rows.
   *
   * @param count number of samples
   * @param lengthOf tokens of a sample; samples of no tokens are left out
   */
  constructor(
    count: number,
    lengthOf: (sample: number) => number,
    sequenceLength: number,
    packing: Exclude<Packing, "wrapped">,
  ) {
    const isSplit = packing === "bfd-split";
    let [parts, tokens, cutSamples, cutTokens] = [0, 0, 0, 0];
    for (let sample = 0; sample < count; sample++) {
      const length = lengthOf(sample);
      parts += isSplit ? Math.ceil(length / sequenceLength) : Math.min(1, length);
      tokens += isSplit ? length : Math.min(length, sequenceLength);
      if (isSplit || length <= sequenceLength) continue;
      cutSamples++;
      cutTokens += length - sequenceLength;
    }
    [this.tokens, this.cutSamples, this.cutTokens, this.#sequenceLength] = [
      tokens,
      cutSamples,
      cutTokens,
      sequenceLength,
    ];
    this.#samples = new Uint32Array(parts);
    this.#starts = new Uint32Array(parts);
    this.#lengths = new Uint32Array(parts);
    let part = 0;
    for (let sample = 0; sample < count; sample++) {
      const length = lengthOf(sample);
      for (let start = 0; start < length; start += sequenceLength) {
        this.#samples[part] = sample;
        this.#starts[part] = start;
        this.#lengths[part] = Math.min(sequenceLength, length - start);
        part++;
        if (!isSplit) break;
      }
    }
    const rowOf = packing === "none" ? undefined : bestFit(this.#lengths, sequenceLength);
    this.numRows = rowOf === undefined ? parts : rowOf.numRows;
    [this.#order, this.#begins] = rowOf === undefined
      ? [Uint32Array.from({ length: parts }, (_, i) => i), Uint32Array.from({ length: parts + 1 }, (_, i) => i)]
      : grouped(rowOf);
  }

  /** The share of rows of the sequence length that is padding. */
  get padding(): number {
    return 1 - this.tokens / (this.numRows * this.#sequenceLength);
  }

  /** The parts of a row, one behind the other. */
  partsOf(row: number): RowPart[] {
    const order = this.#order.subarray(at(this.#begins, row, "row"), at(this.#begins, row + 1, "row"));
    return Array.from(order, (part) => ({
      sample: at(this.#samples, part, "part"),
      start: at(this.#starts, part, "part"),
      length: at(this.#lengths, part, "part"),
    }));
  }

  /** Tokens of a row. */
  lengthOf(row: number): number {
    return this.partsOf(row).reduce((sum, { length }) => sum + length, 0);
  }
}

/** The row of each part, by the order in which parts were placed. */
interface RowPlacement {
  readonly numRows: number;
  /** Parts, from the longest to the shortest; of equal ones the first comes first. */
  readonly placed: Uint32Array;
  /** The row of each of {@link placed}. */
  readonly rows: Uint32Array;
}

function bestFit(lengths: Uint32Array, sequenceLength: number): RowPlacement {
  const placed = longestFirst(lengths, sequenceLength);
  const rows = new Uint32Array(placed.length);
  const open = new NumberSet(sequenceLength + 1); // how much room rows have
  // Rows with some room, from the first to the last: lists by how much room. -1 is none.
  const first = new Int32Array(sequenceLength + 1).fill(-1);
  const last = new Int32Array(sequenceLength + 1).fill(-1);
  const behind = new Int32Array(placed.length).fill(-1);
  let numRows = 0;
  for (const [i, part] of placed.entries()) {
    const length = at(lengths, part, "part");
    const found = open.next(length);
    const room = found === undefined ? sequenceLength : found;
    const row = found === undefined ? numRows++ : at(first, room, "room");
    if (found !== undefined) {
      const next = at(behind, row, "row");
      first[room] = next;
      if (next < 0) open.delete(room);
    }
    rows[i] = row;
    const left = room - length;
    if (left === 0) continue;
    behind[row] = -1;
    if (at(first, left, "room") < 0) {
      first[left] = row;
      open.add(left);
    } else {
      behind[at(last, left, "room")] = row;
    }
    last[left] = row;
  }
  return { numRows, placed, rows };
}

/** Numbers of parts by falling length. */
function longestFirst(lengths: Uint32Array, longest: number): Uint32Array {
  const begins = new Uint32Array(longest + 2);
  for (const length of lengths) begins[longest - length + 1] = at(begins, longest - length + 1, "length") + 1;
  for (let i = 1; i < begins.length; i++) begins[i] = at(begins, i, "length") + at(begins, i - 1, "length");
  const order = new Uint32Array(lengths.length);
  for (const [part, length] of lengths.entries()) {
    const place = at(begins, longest - length, "length");
    order[place] = part;
    begins[longest - length] = place + 1;
  }
  return order;
}

/** Parts row by row, in the order in which they were placed; and where each row's begin, and all end. */
function grouped({ numRows, placed, rows }: RowPlacement): readonly [order: Uint32Array, begins: Uint32Array] {
  const begins = new Uint32Array(numRows + 1);
  for (const row of rows) begins[row + 1] = at(begins, row + 1, "row") + 1;
  for (let row = 1; row <= numRows; row++) begins[row] = at(begins, row, "row") + at(begins, row - 1, "row");
  const order = new Uint32Array(placed.length);
  const next = begins.slice(0, numRows);
  for (const [i, row] of rows.entries()) {
    const place = at(next, row, "row");
    order[place] = at(placed, i, "part");
    next[row] = place + 1;
  }
  return [order, begins];
}
