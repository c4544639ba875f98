/**
 * Tables with a row for each position, which make way for larger ones.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** How many rows a table for `needed` positions gets: with room, as a text that is generated grows token by token. */
export function rowsFor(needed: number, maxPositions: number): number {
  return Math.max(needed, Math.min(maxPositions, 2 ** Math.ceil(Math.log2(needed))));
}

/** Tables of some positions. They are freed when larger ones are made, or with the last graph that reads them. */
export class PositionRows<T extends readonly Tensor[]> implements Disposable {
  readonly rows: number;
  readonly #tables: T;
  /** Reads in graphs that are there. */
  #reads = 0;
  #isOutgrown = false;

  constructor(rows: number, tables: T) {
    this.rows = rows;
    this.#tables = tables;
  }

  /** The tables, to be read by what is enqueued now; where that is captured, as long as its graph is there. */
  read({ graphs }: Device): T {
    if (graphs?.isCapturing === true) {
      this.#reads++;
      graphs.afterGraph(() => {
        this.#reads--;
        this.#end();
      });
    }
    return this.#tables;
  }

  /** Larger ones are there. */
  [Symbol.dispose](): void {
    this.#isOutgrown = true;
    this.#end();
  }

  #end(): void {
    if (!this.#isOutgrown || this.#reads > 0) return;
    for (const table of this.#tables) table.dispose();
  }
}
