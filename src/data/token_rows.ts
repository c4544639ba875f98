/**
 * Rows of tokens, made of a stream that is cut anywhere or of samples that stay apart. Which rows a step takes is left to
 * `sampler.ts`.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { MicroBatch } from "./micro_batch.ts";
import type { TokenStream } from "./token_stream.ts";
import { documentsOf, type PartStream } from "./samples/documents_of.ts";
import { type Packing, type RowPart, Rows } from "./samples/rows.ts";
import { IGNORED, type SampleStream, type TokenSample } from "./samples/sample.ts";

/** Rows, read by number. */
export interface TokenRows {
  /** The way in which samples became rows. */
  readonly packing: Packing;
  /** Changes with the tokens: hexadecimal. */
  readonly fingerprint: string;
  /** Number of full rows. */
  readonly numRows: number;
  /** True if a shorter last row follows, which training leaves out. */
  readonly hasRest: boolean;
  /** The planned rows, where samples stay apart. */
  readonly rows?: Rows;
  /** Tokens of a row, where a row of a micro-batch is as long as its longest. @default all are of the sequence length */
  readonly lengthOf?: (row: number) => number;
  /** Reads rows; the row of number {@link numRows} is the rest. */
  load(rows: readonly number[]): Promise<MicroBatch>;
}

/** Options of {@link rowsOf}. */
export interface TokenRowOptions {
  /** Tokens of every row, with `none`. @default the longest row of a micro-batch */
  readonly padTo?: number | undefined;
  /** True if samples 2i and 2i + 1 are pair i, with `none`: rows are then numbered by pairs. @default false */
  readonly isPairs?: boolean | undefined;
}

/**
 * Rows of tokens or samples.
 *
 * @throws {ArgumentError} if there is not enough for one row, documents are to be kept apart whose ends are not known, or what is to be
 * pairs is packed or no samples
 * @throws {CheckpointError} if a file of tokens is damaged
 */
export function rowsOf(
  source: TokenStream | SampleStream,
  sequenceLength: number,
  packing: Packing,
  { padTo, isPairs = false }: TokenRowOptions = {},
): TokenRows {
  if (!Number.isSafeInteger(sequenceLength) || sequenceLength < 1) {
    throw new ArgumentError(`sequenceLength must be an integer from 1, got ${sequenceLength}`);
  }
  const isSamples = "lengthOf" in source;
  if (isPairs) {
    if (isSamples && packing === "none") return pairRows(source, sequenceLength, padTo);
    throw new ArgumentError(
      `Cannot take pairs of ${isSamples ? `samples packed by '${packing}'` : "a stream"}: use 'none'`,
    );
  }
  if (packing !== "wrapped") {
    return packedRows(isSamples ? source : documentsOf(source), sequenceLength, packing, padTo);
  }
  if (!isSamples) return wrappedRows(source, sequenceLength);
  const other = "use 'none', 'bfd' or 'bfd-split', or pack tokens";
  throw new ArgumentError(`Cannot pack samples by 'wrapped', which would train on what they leave out: ${other}`);
}

/** Windows of a stream, labeled with the tokens that follow; the last token is only predicted. */
function wrappedRows(tokens: TokenStream, sequenceLength: number): TokenRows {
  const numRows = Math.floor((tokens.length - 1) / sequenceLength);
  if (numRows < 1) {
    throw new ArgumentError(
      `One sample of sequenceLength ${sequenceLength} takes ${sequenceLength + 1} tokens, ` +
        `got ${tokens.length} in all: use more text or shorter samples`,
    );
  }
  const rest = (tokens.length - 1) % sequenceLength;
  return {
    packing: "wrapped",
    fingerprint: tokens.fingerprint,
    numRows,
    hasRest: rest > 0,
    async load(rows) {
      const seq = rows.includes(numRows) ? rest : sequenceLength;
      const inputIds = new Int32Array(rows.length * seq);
      const labels = new Int32Array(rows.length * seq);
      const window = new Int32Array(seq + 1);
      const [inputs, nexts] = [window.subarray(0, seq), window.subarray(1)];
      let place = 0;
      for (const row of rows) {
        await tokens.read(row * sequenceLength, window);
        inputIds.set(inputs, place);
        labels.set(nexts, place);
        place += seq;
      }
      return { inputIds, labels, batch: rows.length, seq };
    },
  };
}

/** Rows of samples that stay apart, filled up with padding. */
function packedRows(
  samples: SampleStream | PartStream,
  sequenceLength: number,
  packing: Exclude<Packing, "wrapped">,
  padTo: number | undefined,
): TokenRows {
  const rows = new Rows(samples.length, (sample) => samples.lengthOf(sample), sequenceLength, packing);
  if (rows.numRows < 1) throw new ArgumentError(`There are no tokens in ${samples.length} samples: give some`);
  const isAlone = packing === "none";
  return {
    packing,
    fingerprint: samples.fingerprint,
    numRows: rows.numRows,
    hasRest: false,
    rows,
    ...isAlone ? { lengthOf: (row: number) => rows.lengthOf(row) } : {},
    async load(numbers) {
      const parts = numbers.map((row) => rows.partsOf(row));
      const lengths = Int32Array.from(parts, (list) => list.reduce((sum, { length }) => sum + length, 0));
      const [batch, seq] = [numbers.length, isAlone ? padTo ?? Math.max(...lengths) : sequenceLength];
      // Padding is id 0, whose scores count for nothing and which no other token sees.
      const inputIds = new Int32Array(batch * seq);
      const labels = new Int32Array(batch * seq).fill(IGNORED);
      const documentStarts = new Int32Array(batch * seq);
      for (const [i, list] of parts.entries()) {
        let place = 0;
        for (const part of list) {
          const begin = i * seq + place;
          const { ids, labels: own } = await readPart(samples, part);
          inputIds.set(ids, begin);
          // A token's label says what comes after it; the first token of a part follows none.
          labels.set(own.subarray(1), begin);
          documentStarts.fill(place, begin, begin + part.length);
          place += part.length;
        }
        documentStarts.fill(place, i * seq + place, (i + 1) * seq);
      }
      return { inputIds, labels, batch, seq, lengths, ...isAlone ? {} : { documentStarts } };
    },
  };
}

/** Rows of pairs, two by two: a chosen and a rejected answer are never in different micro-batches. */
function pairRows(samples: SampleStream, sequenceLength: number, padTo: number | undefined): TokenRows {
  const single = packedRows(samples, sequenceLength, "none", padTo);
  if (single.numRows !== samples.length || samples.length % 2 !== 0) {
    throw new ArgumentError(`Cannot take ${samples.length} samples as pairs: give two of at least a token for each`);
  }
  const rowsOfPair = (pair: number): readonly [chosen: number, rejected: number] => [2 * pair, 2 * pair + 1];
  return {
    ...single,
    numRows: single.numRows / 2,
    lengthOf: (pair) => Math.max(...rowsOfPair(pair).map((row) => samples.lengthOf(row))),
    load: async (pairs) => ({
      ...await single.load(pairs.flatMap(rowsOfPair)),
      pairs: Int32Array.from(pairs),
      ...samples.isDesirable === undefined
        ? {}
        : { isDesirable: Uint8Array.from(pairs, (pair) => Number(samples.isDesirable?.(2 * pair))) },
    }),
  };
}

/** Reads what lies in a row of a sample. */
async function readPart(
  samples: SampleStream | PartStream,
  { sample, start, length }: RowPart,
): Promise<TokenSample> {
  if ("readPart" in samples) return await samples.readPart(sample, start, length);
  const { ids, labels } = await samples.read(sample);
  return { ids: ids.subarray(start, start + length), labels: labels.subarray(start, start + length) };
}
