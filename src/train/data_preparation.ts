/**
 * Turns the data of a training into tokens: text as one stream, chats and prompts as samples. The choice of the ranks that do it,
 * and of the ranks that wait, is in `text_data.ts`.
 *
 * @module
 */
import type { SkippedFiles } from "../data/find_files.ts";
import { columnsRead } from "../data/chat/columns.ts";
import type { DocumentSource } from "../data/documents.ts";
import { eosOf, packInMemory, tokenCache, type TokenStream } from "../data/token_stream.ts";
import type { RowSource } from "../data/rows/open_rows.ts";
import { encodeInMemory, encodingPrint, sampleCache, type SampleOptions } from "../data/samples/sample_cache.ts";
import type { SampleSummary } from "../data/samples/sample_file.ts";
import type { SampleStream } from "../data/samples/sample.ts";
import { rowEncoder, textEncoder, type WindowEncoder } from "../data/stream/encode_window.ts";
import type { WindowSourceOptions } from "../data/stream/window_source.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { ConfigError } from "../errors.ts";
import { sha256 } from "../runtime/checksum.ts";
import { namesOf } from "./data_words.ts";

/** Data that is to be tokenized. */
export interface DataPreparation {
  readonly files: readonly string[];
  readonly skipped?: SkippedFiles | undefined;
  readonly byteLength: number;
  /** A sentence that a run logs about the data. @default none */
  readonly note?: string | undefined;
  /** A text that changes with the rules of tokenization, apart from the tokenizer; the same on every rank. */
  readonly rules: string;
  /** SHA-256 of the contents. */
  fingerprint(): string;
  /** The file that keeps the tokens. @param known the fingerprint, where another rank has read the contents */
  cache(directory: string, known?: string): PreparedCache;
  /** Makes the tokens in memory. */
  inMemory(known: string): Promise<PreparedData>;
  /** Refuses files that are too long to be tokenized at once. */
  requireDocuments(): void;
  /** Refuses files without anything. */
  requireSome(): Promise<void>;
  /** True if each row is a sample of its own. */
  readonly isRows: boolean;
  /** The files as windows read them. */
  readonly inWindows: Pick<WindowSourceOptions, "files" | "isText">;
  /** Makes tokens of windows. @param report receives the problems of the first rows that are skipped */
  encoder(report: (text: string) => void): WindowEncoder;
}

/** Tokens that are kept in a file. */
export interface PreparedCache {
  readonly textFingerprint: string;
  exists(): boolean;
  build(): Promise<void>;
  open(): PreparedData;
}

/** The tokens or samples that a loader reads, and a summary of the rows, if there were any. */
export interface PreparedData {
  readonly tokens: TokenStream | SampleStream;
  readonly summary?: SampleSummary | undefined;
}

/** Text as one stream of tokens. @param textField the column of rows that holds the text */
export function textPreparation(
  source: DocumentSource,
  tokenizer: Tokenizer,
  { name, textField }: { readonly name: string; readonly textField: string },
): DataPreparation {
  const { files, skipped, byteLength, isText } = source;
  return {
    ...{ files, skipped, byteLength, rules: "text", isRows: false, inWindows: { files, isText } },
    requireDocuments: () => source.requireDocuments(),
    encoder: () => {
      const print = sha256([`text ${JSON.stringify(textField)} ${eosOf(tokenizer)}\n`, tokenizer.fingerprint]);
      return textEncoder({ tokenizer, textField, name, print });
    },
    fingerprint: () => source.fingerprint(),
    cache: (directory, known) => {
      const cache = tokenCache(source, tokenizer, directory, known);
      const { textFingerprint } = cache;
      return {
        textFingerprint,
        exists: () => cache.exists(),
        build: () => cache.build(),
        open: () => ({ tokens: cache.open() }),
      };
    },
    inMemory: async (known) => ({ tokens: await packInMemory(source, tokenizer, known) }),
    requireSome: async () => {
      for await (const _ of source.documents()) return;
      throw new ConfigError([{
        path: name,
        expected: "some text",
        got: `none in ${namesOf(source)}: give files that are not empty`,
      }]);
    },
  };
}

/** Rows as samples. */
export function rowPreparation(source: RowSource, options: SampleOptions): DataPreparation {
  const { files, skipped, byteLength } = source;
  return {
    ...{ files, skipped, byteLength, rules: encodingPrint(options), isRows: true },
    requireDocuments: () => undefined,
    inWindows: { files, isText: () => false },
    encoder: (report) =>
      rowEncoder({ options, columns: columnsRead(options.textField), print: encodingPrint(options), report }),
    fingerprint: () => source.fingerprint(),
    cache: (directory, known) => {
      const cache = sampleCache(source, options, directory, known);
      const { textFingerprint } = cache;
      return {
        textFingerprint,
        exists: () => cache.exists(),
        build: () => cache.build(),
        open: () => withSummary(cache.open()),
      };
    },
    inMemory: async (known) => withSummary(await encodeInMemory(source, options, known)),
    requireSome: () => Promise.resolve(), // rows that are missing are found when they are encoded
  };
}

function withSummary(samples: SampleStream & { readonly summary: SampleSummary }): PreparedData {
  return { tokens: samples, summary: samples.summary };
}
