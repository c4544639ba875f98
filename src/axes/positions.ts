/**
 * The rows of a sequence divided over the ranks of a context axis. A row is cut into 2n parts for n ranks. Rank r computes part r and
 * part 2n − 1 − r, so that all ranks attend to about as many keys (zigzag: Llama 3, Grattafiori et al. 2024, section 3.3.2).
 *
 * @module
 */
import { at } from "../at.ts";
import { type MicroBatch, requireRows } from "../data/micro_batch.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";

/** A rank's place on a context axis. */
export interface PositionPart {
  /** The place. */
  readonly rank: number;
  /** Number of ranks that share a row. */
  readonly size: number;
}

/** The two parts of 2 × `size` parts that a rank computes, in their order in the row. */
export function zigzag({ rank, size }: PositionPart): readonly [first: number, second: number] {
  return [rank, 2 * size - 1 - rank];
}

/**
 * A rank's positions of each row, with their numbers. Rows whose length is no multiple of 2 × `size` are padded behind their end with
 * tokens that have no label.
 *
 * @throws {ArgumentError} if beginnings of documents or lengths of rows do not fit the tokens
 */
export function takePositions(microBatch: MicroBatch, part: PositionPart): MicroBatch {
  requireRows(microBatch);
  const { batch, seq, inputIds, labels, documentStarts, random } = microBatch;
  const width = Math.ceil(seq / (2 * part.size));
  const take = (valueAt: (row: number, position: number) => number): Int32Array => {
    const taken = new Int32Array(batch * 2 * width);
    let next = 0;
    for (let row = 0; row < batch; row++) {
      for (const piece of zigzag(part)) {
        for (let i = 0; i < width; i++) taken[next++] = valueAt(row, piece * width + i);
      }
    }
    return taken;
  };
  // Padding goes on with the last document, whose tokens do not see it.
  const startAt = (row: number, position: number): number =>
    documentStarts === undefined ? 0 : at(documentStarts, row * seq + Math.min(position, seq - 1), "document start");
  const tokenOf = (tokens: Int32Array, none: number) => (row: number, position: number): number =>
    position < seq ? at(tokens, row * seq + position, "token") : none;
  return {
    inputIds: take(tokenOf(inputIds, 0)),
    labels: take(tokenOf(labels, IGNORE_INDEX)),
    batch,
    seq: 2 * width,
    documentStarts: documentStarts && take(startAt),
    part: {
      positionIds: take((row, position) => position < seq ? position - startAt(row, position) : 0),
      rowLength: seq,
    },
    random,
  };
}
