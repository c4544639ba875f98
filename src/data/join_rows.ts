/**
 * Rows of several micro-batches as one micro-batch.
 *
 * @module
 */
import { at } from "../at.ts";
import type { MicroBatch } from "./micro_batch.ts";
import { IGNORED } from "./samples/sample.ts";

/** All rows of micro-batches, one behind the other, padded to the longest. */
export function joinRows(parts: readonly MicroBatch[]): MicroBatch {
  const seq = Math.max(...parts.map((part) => part.seq));
  const batch = parts.reduce((sum, part) => sum + part.batch, 0);
  const inputIds = new Int32Array(batch * seq);
  const labels = new Int32Array(batch * seq).fill(IGNORED);
  const documentStarts = parts.some((part) => part.documentStarts) ? new Int32Array(batch * seq) : undefined;
  const lengths = parts.some((part) => part.lengths) ? new Int32Array(batch) : undefined;
  let row = 0;
  for (const part of parts) {
    for (let i = 0; i < part.batch; i++, row++) {
      const own = (values: Int32Array): Int32Array => values.subarray(i * part.seq, (i + 1) * part.seq);
      inputIds.set(own(part.inputIds), row * seq);
      labels.set(own(part.labels), row * seq);
      if (part.documentStarts !== undefined) documentStarts?.set(own(part.documentStarts), row * seq);
      if (lengths !== undefined) lengths[row] = part.lengths === undefined ? part.seq : at(part.lengths, i, "length");
    }
  }
  const pairs = valuesOfAll(parts.map((part) => part.pairs));
  const isDesirable = valuesOfAll(parts.map((part) => part.isDesirable));
  return {
    ...{ inputIds, labels, batch, seq, lengths, documentStarts },
    ...pairs === undefined ? {} : { pairs: Int32Array.from(pairs) },
    ...isDesirable === undefined ? {} : { isDesirable: Uint8Array.from(isDesirable) },
  };
}

/** The values of all parts, one behind the other; undefined unless every part has some. */
function valuesOfAll(parts: readonly (Int32Array | Uint8Array | undefined)[]): readonly number[] | undefined {
  const values: number[] = [];
  for (const part of parts) {
    if (part === undefined) return undefined;
    values.push(...part);
  }
  return values;
}
