/**
 * Rows of several sources as rows of one, numbered source after source.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import { sha256 } from "../runtime/checksum.ts";
import type { MicroBatch } from "./micro_batch.ts";
import { IGNORED } from "./samples/sample.ts";
import type { TokenRows } from "./token_rows.ts";

/**
 * Joins rows.
 *
 * @param weights what each source gives, for the fingerprint
 * @throws {ArgumentError} if sources become rows in different ways
 */
export function mixedRows(sources: readonly TokenRows[], weights: readonly number[]): TokenRows {
  const [first] = sources;
  if (first === undefined) throw new ArgumentError("A mixture has at least one source");
  const other = sources.find(({ packing }) => packing !== first.packing);
  if (other !== undefined) {
    throw new ArgumentError(
      `Cannot mix rows of packing '${first.packing}' with rows of packing '${other.packing}': give all sources one packing`,
    );
  }
  const begins = [0];
  for (const { numRows } of sources) begins.push(at(begins, begins.length - 1, "begin") + numRows);
  const placeOf = (row: number): readonly [source: TokenRows, index: number, row: number] => {
    const index = begins.findLastIndex((begin) => begin <= row);
    return [at(sources, index, "source"), index, row - at(begins, index, "begin")];
  };
  return {
    packing: first.packing,
    fingerprint: sha256(sources.map(({ fingerprint }, i) => `${weights[i]} ${fingerprint}\n`)),
    numRows: at(begins, sources.length, "begin"),
    hasRest: false,
    ...first.lengthOf === undefined ? {} : {
      lengthOf: (row: number) => {
        const [source, , own] = placeOf(row);
        if (source.lengthOf === undefined) throw new InternalError("rows of one packing have lengths, or none has");
        return source.lengthOf(own);
      },
    },
    async load(rows) {
      const places = rows.map(placeOf);
      const loaded = new Map<number, MicroBatch>();
      for (const index of new Set(places.map(([, index]) => index))) {
        const own = places.filter(([, other]) => other === index).map(([, , row]) => row);
        loaded.set(index, await at(sources, index, "source").load(own));
      }
      const isPairs = [...loaded.values()].every((own) => own.pairs !== undefined);
      const sourcesOfRows = places.flatMap(([, index]) => isPairs ? [index, index] : [index]);
      return { ...joined(sourcesOfRows, loaded), ...isPairs ? { pairs: Int32Array.from(rows) } : {} };
    },
  };
}

/** The rows of micro-batches as one, in the order of `sources`, padded to the longest. */
function joined(sources: readonly number[], loaded: ReadonlyMap<number, MicroBatch>): MicroBatch {
  const all = [...loaded.values()];
  const seq = Math.max(...all.map((own) => own.seq));
  const batch = sources.length;
  const inputIds = new Int32Array(batch * seq);
  const labels = new Int32Array(batch * seq).fill(IGNORED);
  const documentStarts = all.some((own) => own.documentStarts) ? new Int32Array(batch * seq) : undefined;
  const lengths = all.some((own) => own.lengths) ? new Int32Array(batch) : undefined;
  const next = new Map<number, number>();
  for (const [row, source] of sources.entries()) {
    const own = loaded.get(source);
    if (own === undefined) throw new ArgumentError(`Source ${source} has not been read`);
    const index = next.get(source) ?? 0;
    next.set(source, index + 1);
    const part = (values: Int32Array): Int32Array => values.subarray(index * own.seq, (index + 1) * own.seq);
    inputIds.set(part(own.inputIds), row * seq);
    labels.set(part(own.labels), row * seq);
    if (own.documentStarts !== undefined) documentStarts?.set(part(own.documentStarts), row * seq);
    if (lengths !== undefined) lengths[row] = own.lengths === undefined ? own.seq : at(own.lengths, index, "length");
  }
  return { inputIds, labels, batch, seq, lengths, documentStarts };
}
