/**
 * Packed tokens as samples: a document each, all of whose tokens are trained on.
 *
 * @module
 */
import { at } from "../../at.ts";
import { ArgumentError } from "../../errors.ts";
import type { TokenStream } from "../token_stream.ts";
import type { SampleStream, TokenSample } from "./sample.ts";

/** Samples that are read in parts: documents may be much longer than rows. */
export interface PartStream extends SampleStream {
  /** Reads some tokens of a sample. */
  readPart(index: number, start: number, length: number): Promise<TokenSample>;
}

/**
 * The documents of packed tokens; closing them closes the tokens.
 *
 * @throws {ArgumentError} if the tokens do not say where documents end
 * @throws {CheckpointError} if their file is damaged
 */
export function documentsOf(tokens: TokenStream): PartStream {
  const lengths = tokens.documentLengths?.();
  if (lengths === undefined) {
    throw new ArgumentError(
      "Cannot keep the documents of these tokens apart, as they do not say where documents end: give tokensInMemory their lengths, " +
        "or use the packing 'wrapped'",
    );
  }
  const begins = new Float64Array(lengths.length);
  for (let i = 1; i < begins.length; i++) begins[i] = at(begins, i - 1, "document") + at(lengths, i - 1, "document");
  const readPart = async (index: number, start: number, length: number): Promise<TokenSample> => {
    const ids = new Int32Array(length);
    await tokens.read(at(begins, index, "document") + start, ids);
    return { ids, labels: ids };
  };
  return {
    length: lengths.length,
    fingerprint: tokens.fingerprint,
    lengthOf: (index) => at(lengths, index, "document"),
    read: (index) => readPart(index, 0, at(lengths, index, "document")),
    readPart,
    close: () => tokens.close(),
  };
}
