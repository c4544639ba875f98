/**
 * Rows of tokens that a rank computes at once.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { RandomSource } from "../random.ts";

/** Tokens of longer rows. */
export interface RowSlice {
  /** Positions of the tokens in their documents, [batch, seq]. */
  readonly positionIds: Int32Array;
  /** Tokens of a full row. */
  readonly rowLength: number;
}

/** The samples that a rank computes forward and backward at once. */
export interface MicroBatch {
  /** Token ids, row-major [batch, seq]. */
  readonly inputIds: Int32Array;
  /** The token that each position is to predict, [batch, seq]; -100 counts for nothing. */
  readonly labels: Int32Array;
  /** Samples. */
  readonly batch: number;
  /** Tokens of each sample. */
  readonly seq: number;
  /**
   * Starts of the documents that follow each other in a row, [batch, seq]: for each token the place in its row of its document's
   * first token. Tokens see their own document alone, and positions count from 0 in each. @default each row is one document
   */
  readonly documentStarts?: Int32Array | undefined;
  /** The part that the tokens are of longer rows, in which `documentStarts` are places. @default the rows are complete */
  readonly part?: RowSlice | undefined;
  /** Tokens of each row that are no padding, which lies behind them: [batch]. @default all */
  readonly lengths?: Int32Array | undefined;
  /**
   * Numbers of the pairs in their data, [batch / 2], where rows are pairs: rows 2i and 2i + 1 are the chosen and the rejected answer of
   * pair i. @default rows are no pairs
   */
  readonly pairs?: Int32Array | undefined;
  /**
   * For each pair whether its answer is desirable, [batch / 2], where rows have labels: row 2i is then the answer of example i, and row
   * 2i + 1 another answer to its prompt. @default rows have no labels
   */
  readonly isDesirable?: Uint8Array | undefined;
  /**
   * The source that dropout and sampled routing draw from in training; a {@link DataLoader} counts the samples in the order in
   * which it gives them. @default there is no source, and a model that draws is refused
   */
  readonly random?: RandomSource | undefined;
}

/** One step's part of one rank. */
export interface Batch {
  /** At least one, and as many on every rank. */
  readonly microBatches: readonly MicroBatch[];
  /** The step's number from 1, for messages. */
  readonly step?: number;
}

/**
 * Refuses numbers of tokens, beginnings of documents and lengths of rows that do not fit each other: kernels rely on them.
 *
 * @throws {ArgumentError} naming the row and the token
 */
export function requireRows({ batch, seq, inputIds, labels, documentStarts, lengths, part, pairs }: MicroBatch): void {
  for (const [name, tokens] of Object.entries({ inputIds, labels })) {
    if (tokens.length === batch * seq) continue;
    throw new ArgumentError(
      `Cannot run a micro-batch with such ${name}: expected ${batch} × ${seq} numbers, got ${tokens.length}`,
    );
  }
  if (pairs !== undefined && pairs.length * 2 !== batch) {
    throw new ArgumentError(
      `Cannot run a micro-batch with such pairs: expected a number for each two of ${batch} rows, got ${pairs.length}`,
    );
  }
  if (part !== undefined) return; // its rows were checked before they were divided
  if (lengths !== undefined) {
    const wrong = lengths.findIndex((length) => length < 1 || length > seq);
    if (lengths.length !== batch || wrong >= 0) {
      const got = lengths.length === batch ? `${lengths[wrong]} in row ${wrong}` : `${lengths.length} numbers`;
      throw new ArgumentError(
        `Cannot run a micro-batch with such lengths: expected ${batch} numbers from 1 to ${seq}, got ${got}`,
      );
    }
  }
  if (documentStarts === undefined) return;
  if (documentStarts.length !== batch * seq) {
    throw new ArgumentError(
      `Cannot run a micro-batch with such documentStarts: expected ${batch} × ${seq} numbers, got ${documentStarts.length}`,
    );
  }
  for (const [token, start] of documentStarts.entries()) {
    const place = token % seq;
    // A document that goes on has the start of the token before; one that begins has its own place.
    if (start === place || (place > 0 && start === documentStarts[token - 1])) continue;
    throw new ArgumentError(
      `Cannot run a micro-batch with such documentStarts: token ${place} of row ${
        Math.floor(token / seq)
      } must have its own ` +
        `place ${place}, where a document begins, or the number of the token before it, got ${start}`,
    );
  }
}
