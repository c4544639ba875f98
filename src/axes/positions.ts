/**
 * The rows of a sequence divided over the ranks of a context axis. A row is cut into 2n parts for n ranks. Rank r computes part r and
 * part 2n − 1 − r, so that all ranks attend to about as many keys (zigzag: Llama 3, Grattafiori et al. 2024, section 3.3.2).
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { type MicroBatch, requireRows } from "../data/micro_batch.ts";
import { ArgumentError } from "../errors.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import { sha256 } from "../runtime/checksum.ts";

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
 * @throws {ArgumentError} if the rows are parts themselves, or numbers of tokens, beginnings of documents or lengths do not fit
 */
export function takePositions(microBatch: MicroBatch, part: PositionPart): MicroBatch {
  if (microBatch.part !== undefined) {
    throw new ArgumentError(
      "Cannot divide the positions of a micro-batch that is a part of its rows already: give full rows",
    );
  }
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

/** Sizes of rows. */
type RowBlock = Pick<MicroBatch, "batch" | "seq">;

/** A rank's numbers of the positions of rows, [batch, seq], as {@link takePositions} takes tokens; 0 behind the end of a row. */
export function takeNumbers(
  numbers: Float32Array,
  { batch, seq }: RowBlock,
  part: PositionPart,
): Float32Array<ArrayBuffer> {
  const width = Math.ceil(seq / (2 * part.size));
  const taken = new Float32Array(batch * 2 * width);
  for (const { own, all, length } of piecesOf({ batch, seq }, part)) {
    taken.set(numbers.subarray(all, all + length), own);
  }
  return taken;
}

/** The numbers of all positions of rows, [batch, seq], from those of each rank. */
export function joinNumbers(parts: readonly Float32Array[], sizes: RowBlock): Float32Array<ArrayBuffer> {
  const joined = new Float32Array(sizes.batch * sizes.seq);
  for (const [rank, part] of parts.entries()) {
    for (const { own, all, length } of piecesOf(sizes, { rank, size: parts.length })) {
      joined.set(part.subarray(own, own + length), all);
    }
  }
  return joined;
}

/** Adjacent positions that a rank has, by their first places among its own and among all positions, row-major. */
function piecesOf({ batch, seq }: RowBlock, part: PositionPart) {
  const width = Math.ceil(seq / (2 * part.size));
  return Array.from({ length: batch }, (_, row) =>
    zigzag(part).map((piece, i) => {
      const begin = Math.min(seq, piece * width);
      return { own: (2 * row + i) * width, all: row * seq + begin, length: Math.min(seq, begin + width) - begin };
    })).flat();
}

/**
 * Refuses other rows on other ranks of an axis whose ranks read the same rows. Every rank of the axis must call it.
 *
 * @param axis its kind, for messages
 * @throws {ArgumentError} naming the ranks, on every rank
 */
export function requireSameRows(
  microBatches: readonly MicroBatch[],
  group: ProcessGroup,
  axis: "context" | "pipeline" = "context",
): void {
  const pieces = microBatches.flatMap(
    ({ batch, seq, inputIds, labels, documentStarts = new Int32Array(), lengths = new Int32Array() }) => [
      `${batch} ${seq} ${documentStarts.length} ${lengths.length};`,
      ...[inputIds, labels, documentStarts, lengths].map(({ buffer, byteOffset, byteLength }) =>
        new Uint8Array(buffer, byteOffset, byteLength)
      ),
    ],
  );
  const digests = group.exchangeText(sha256(pieces), `rows of a ${axis} axis`);
  const other = digests.findIndex((digest) => digest !== digests[0]);
  if (other < 0) return;
  const [first, second] = [0, other].map((rank) => group.worldRanks[rank]);
  throw new ArgumentError(
    `Cannot ${
      axis === "context" ? "share positions" : "run stages"
    }: ranks ${first} and ${second} of one ${axis} axis read other ` +
      `rows. Ranks of a ${axis} axis must read the same micro-batches: divide samples by run.samples, and not by ranks`,
  );
}
