/**
 * The record of a parameter, as the kernels of updates read it: `wasm/src/optimizer.rs` lays it out.
 *
 * @module
 */
import { CONSTANTS } from "../device/kernels/signature.ts";

/** What the update of one parameter takes. */
export interface UpdateRecord {
  /** The parameter's first element in its flat shard. */
  readonly begin: number;
  /** The element behind its last in its flat shard. */
  readonly end: number;
  /** Its first element in the states. */
  readonly state: number;
  /** Whether the parameter is updated. */
  readonly isActive: boolean;
  /** The learning rate, the weight decay, and the three numbers of the optimizer's own. */
  readonly settings: readonly number[];
}

/** Writes the record of a table's parameter `index`. */
export function writeRecord(table: DataView, index: number, record: UpdateRecord): void {
  const { begin, end, state, isActive, settings } = record;
  const at = index * CONSTANTS.RECORD_BYTES;
  setUint64(table, at, begin);
  setUint64(table, at + 8, end);
  setUint64(table, at + 16, state);
  table.setUint32(at + 24, Number(isActive), true);
  settings.forEach((setting, i) => table.setFloat64(at + 32 + 8 * i, setting, true));
}

/** Writes an integer below 2^53 as 64 bits. `setUint32` keeps the low 32 bits of a larger number. */
function setUint64(view: DataView, at: number, value: number): void {
  view.setUint32(at, value, true);
  view.setUint32(at + 4, Math.floor(value / 2 ** 32), true);
}
