/**
 * Rows of several sources as rows of one, numbered source after source.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import { sha256 } from "../runtime/checksum.ts";
import { joinRows } from "./join_rows.ts";
import type { MicroBatch } from "./micro_batch.ts";
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
  const placeOf = (row: number): readonly [source: TokenRows, row: number] => {
    const index = begins.findLastIndex((begin) => begin <= row);
    return [at(sources, index, "source"), row - at(begins, index, "begin")];
  };
  return {
    packing: first.packing,
    fingerprint: sha256(sources.map(({ fingerprint }, i) => `${weights[i]} ${fingerprint}\n`)),
    numRows: at(begins, sources.length, "begin"),
    hasRest: false,
    ...first.lengthOf === undefined ? {} : {
      lengthOf: (row: number) => {
        const [source, own] = placeOf(row);
        if (source.lengthOf === undefined) throw new InternalError("rows of one packing have lengths, or none has");
        return source.lengthOf(own);
      },
    },
    async load(rows) {
      const parts: MicroBatch[] = [];
      for (const [source, row] of rows.map(placeOf)) parts.push(await source.load([row]));
      const { pairs, ...joined } = joinRows(parts);
      return pairs === undefined ? joined : { ...joined, pairs: Int32Array.from(rows) };
    },
  };
}
