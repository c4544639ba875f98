/**
 * Text, tokens, and batches of them.
 *
 * @module
 */

export { DataLoader, type LoaderOptions, type LoaderState } from "../src/data/loader.ts";
export type { Mixture, MixturePart } from "../src/data/mixture.ts";
export type { MicroBatch, RowSlice } from "../src/data/micro_batch.ts";
export { openText, type TextDocument, type TextOptions, type TextSource } from "../src/data/documents.ts";
export {
  type PackingProgress,
  packInMemory,
  type TokenCache,
  tokenCache,
  tokensInMemory,
  type TokenStream,
} from "../src/data/token_stream.ts";
export type { SkippedFiles } from "../src/data/find_files.ts";
export { type TrainedTokenizer, trainTokenizer } from "../src/data/train_tokenizer.ts";
export { BYTE_TOKENIZER, loadTokenizer, type LoadTokenizerOptions, type Tokenizer } from "../src/data/tokenizer.ts";

export { type Packing, PACKINGS } from "../src/data/samples/rows.ts";
export type { SampleStream, TokenSample } from "../src/data/samples/sample.ts";

// Types that the types above refer to.
export type { RowPart, Rows } from "../src/data/samples/rows.ts";
export type { BatchSplit } from "../src/data/sampler.ts";
export type { LanePlace } from "../src/data/stream/lane.ts";
export type { StreamPlace } from "../src/data/stream/streamed_rows.ts";
