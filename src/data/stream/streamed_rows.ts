/**
 * Rows of sources that are tokenized while they are trained on, for a loader: what a rank takes of a step, and the places to go on from.
 *
 * Invariant: the rows of a step depend on the data, the seed and the number of rows before it alone. They are divided among ranks lane by
 * lane, so that a rank tokenizes the windows of some lanes; see Note [Lanes] in `window_source.ts`.
 *
 * @module
 */
import { at } from "../../at.ts";
import { sha256 } from "../../runtime/checksum.ts";
import { joinRows } from "../join_rows.ts";
import type { MicroBatch } from "../micro_batch.ts";
import { SourceOrder } from "../mixture.ts";
import type { Packing } from "../samples/rows.ts";
import { type BatchSplit, microBatchSize } from "../sampler.ts";
import { rowsOf } from "../token_rows.ts";
import { Lane, type LaneOptions, type LanePlace } from "./lane.ts";
import type { WindowSource, WindowTokens } from "./window_source.ts";

/** A source of a stream, and the rows that it gives for the rows that the other sources give. */
export interface StreamPart {
  readonly windows: WindowSource;
  readonly weight: number;
}

/** The place of one lane of a stream. */
export interface StreamPlace extends LanePlace {
  /** The number of the source, from 0. */
  readonly source: number;
  /** The number of the lane in its source, from 0. */
  readonly lane: number;
}

/** Micro-batches, and the places behind them. */
export interface StreamedStep {
  readonly microBatches: readonly MicroBatch[];
  readonly places: readonly StreamPlace[];
}

/** A row of the global order. */
interface StreamSlot {
  readonly source: number;
  readonly lane: number;
  /** Rows that the lane gives before it. */
  readonly given: number;
}

/**
 * Rows of one source, or of several in fixed proportions.
 *
 * @internal
 */
export class StreamedRows {
  readonly packing: Packing;
  /** Changes with the data: hexadecimal. */
  readonly fingerprint: string;
  readonly #parts: readonly StreamPart[];
  readonly #options: LaneOptions;
  readonly #order: SourceOrder;
  #lanes: readonly (readonly Lane[])[];

  /** Takes the sources, which {@link close} closes. */
  constructor(parts: readonly StreamPart[], options: LaneOptions) {
    this.packing = options.packing;
    this.#parts = parts;
    this.#options = options;
    this.#order = new SourceOrder(parts.map(({ weight }) => weight), options.seed);
    this.fingerprint = sha256(
      parts.map(({ weight, windows }) => `${weight} ${windows.lanes} ${windows.fingerprint}\n`),
    );
    this.#lanes = this.#lanesAt([]);
  }

  /** Files of all sources. */
  get files(): readonly string[] {
    return this.#parts.flatMap(({ windows }) => windows.files);
  }

  /** Bytes of all files. */
  get byteLength(): number {
    return this.#parts.reduce((sum, { windows }) => sum + windows.byteLength, 0);
  }

  /**
   * Reads this rank's part of a step, at or behind the last place.
   *
   * @param cursor rows that all ranks took before
   * @throws {ConfigError} naming file and line of what does not fit
   */
  async read(cursor: number, split: BatchSplit, seed: number): Promise<StreamedStep> {
    const size = microBatchSize(split);
    const lanes = this.#lanes;
    const slots = Array.from({ length: split.globalBatch }, (_, i) => this.#slotOf(cursor + i))
      .sort((a, b) => a.source - b.source || a.lane - b.lane || a.given - b.given);
    const microBatches: MicroBatch[] = [];
    for (let m = 0; m < split.microBatches; m++) {
      const first = (m * split.worldSize + split.rank) * size;
      const rows: MicroBatch[] = [];
      for (const { source, lane, given } of slots.slice(first, first + size)) {
        const own = at(at(lanes, source, "source"), lane, "lane");
        await own.moveTo(given);
        rows.push(await own.next());
      }
      microBatches.push({ ...joinRows(rows), random: { seed, firstSample: cursor + first } });
    }
    return { microBatches, places: placesOf(lanes) };
  }

  /** The places at the beginning of the data. */
  begin(): readonly StreamPlace[] {
    this.#lanes = this.#lanesAt([]);
    return placesOf(this.#lanes);
  }

  /**
   * Goes on from places.
   *
   * @returns false if they are not places of these sources
   */
  restore(places: readonly StreamPlace[]): boolean {
    const isKnown = ({ source, lane }: StreamPlace): boolean => {
      const part = this.#parts[source];
      return part !== undefined && lane < part.windows.lanes;
    };
    const count = this.#parts.reduce((sum, { windows }) => sum + windows.lanes, 0);
    if (places.length !== count || !places.every(isKnown)) return false;
    this.#lanes = this.#lanesAt(places);
    return true;
  }

  /** True if places are those before a row of the global order. */
  areAt(cursor: number, places: readonly StreamPlace[]): boolean {
    // Lanes of a source differ by at most one row, as they take turns.
    const taken = this.#parts.map((_, source) => {
      return places.filter((place) => place.source === source).reduce((sum, { given }) => sum + given, 0);
    });
    return taken.reduce((sum, count) => sum + count, 0) === cursor;
  }

  /** Every row once, in the order of the files, of one part of `worldSize`: each a batch of at most `batchSize`. */
  async *inOrder(rank: number, worldSize: number, batchSize: number): AsyncGenerator<MicroBatch> {
    for (const { windows } of this.#parts) {
      for (let number = rank;; number += worldSize) {
        const tokens = await windows.readInOrder(number);
        if (tokens === undefined) break;
        if (tokens !== "empty") yield* this.#allRows(tokens, batchSize);
      }
    }
  }

  /** Some first tokens of the data. */
  async beginning(most: number): Promise<Int32Array> {
    const { windows } = at(this.#parts, 0, "source");
    for (let number = 0;; number++) {
      const tokens = await windows.readInOrder(number);
      if (tokens === undefined) return new Int32Array(0);
      if (tokens === "empty") continue;
      if ("lengthOf" in tokens) return (await tokens.read(0)).ids.subarray(0, most);
      const ids = new Int32Array(Math.min(most, tokens.length));
      await tokens.read(0, ids);
      return ids;
    }
  }

  /** Gives up open files. */
  close(): void {
    for (const { windows } of this.#parts) windows.close();
  }

  async *#allRows(tokens: WindowTokens, batchSize: number): AsyncGenerator<MicroBatch> {
    const { sequenceLength, packing } = this.#options;
    // A window of less than a row is one row.
    const length = packing === "wrapped" ? Math.min(sequenceLength, tokens.length - 1) : sequenceLength;
    if (length < 1) return;
    const rows = rowsOf(tokens, length, packing, this.#options);
    for (let first = 0; first < rows.numRows; first += batchSize) {
      const count = Math.min(batchSize, rows.numRows - first);
      yield await rows.load(Array.from({ length: count }, (_, i) => first + i));
    }
    if (rows.hasRest) yield await rows.load([rows.numRows]);
  }

  #slotOf(index: number): StreamSlot {
    const { source, taken } = this.#order.at(index);
    const { lanes } = at(this.#parts, source, "source").windows;
    return { source, lane: taken % lanes, given: Math.floor(taken / lanes) };
  }

  #lanesAt(places: readonly StreamPlace[]): readonly (readonly Lane[])[] {
    return this.#parts.map(({ windows }, source) =>
      Array.from({ length: windows.lanes }, (_, lane) => {
        const place = places.find((one) => one.source === source && one.lane === lane);
        return new Lane(windows, lane, this.#options, place);
      })
    );
  }
}

function placesOf(lanes: readonly (readonly Lane[])[]): readonly StreamPlace[] {
  return lanes.flatMap((own, source) => own.map((lane, i) => ({ source, lane: i, ...lane.place })));
}

/**
 * The places of all lanes, of what several ranks know: a rank knows those of the lanes that it reads.
 *
 * @param all the places that each rank knows, in one order of lanes
 */
export function furthestPlaces(all: readonly (readonly StreamPlace[])[]): readonly StreamPlace[] {
  const [first = []] = all;
  return first.map((_, i) => {
    const known = all.map((places) => at(places, i, "place of a lane"));
    return known.reduce((best, place) => place.given > best.given ? place : best);
  });
}
