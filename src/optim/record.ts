/**
 * The record of a parameter, as the kernels of updates read it: `wasm/src/optimizer.rs` lays it out.
 *
 * @module
 */
import { CONSTANTS } from "../device/kernels/signature.ts";

/** What the update of one parameter takes. */
export interface UpdateRecord {
  /** The parameter's first element in the run, the element behind its last, and its first element in the states. */
  readonly places: readonly number[];
  /** Whether the parameter is updated. */
  readonly isActive: boolean;
  /** The learning rate, the weight decay, and the three numbers of the optimizer's own. */
  readonly settings: readonly number[];
}

/** Writes the record of a table's parameter `index`. */
export function writeRecord(table: DataView, index: number, { places, isActive, settings }: UpdateRecord): void {
  const at = index * CONSTANTS.RECORD_BYTES;
  for (const [i, place] of places.entries()) setUint64(table, at + 8 * i, place);
  table.setUint32(at + 24, Number(isActive), true);
  for (const [i, setting] of settings.entries()) table.setFloat64(at + 32 + 8 * i, setting, true);
}

/** Writes an integer below 2^53 as 64 bits. */
function setUint64(view: DataView, at: number, value: number): void {
  view.setUint32(at, value % 2 ** 32, true);
  view.setUint32(at + 4, Math.floor(value / 2 ** 32), true);
}
