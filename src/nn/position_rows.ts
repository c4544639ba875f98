/**
 * Tables with a row for each position, which make way for larger ones.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** Number of rows of a table for `needed` positions: with room, as a generated text grows token by token. */
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

  /** The tables, for work that is enqueued now; if that is captured, they stay as long as its graph. */
  read({ traits: { hostWork } }: Device): T {
    if (hostWork.isCapturing) {
      this.#reads++;
      hostWork.afterGraph(() => {
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
