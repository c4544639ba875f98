/**
 * Tokens of a window: of text a stream with the end-of-text token behind each document, of rows samples.
 *
 * @module
 */
import { ConfigError } from "../../errors.ts";
import { textOf } from "../chat/columns.ts";
import { documentIds, eosOf, tokensInMemory, type TokenStream } from "../token_stream.ts";
import { rowError } from "../rows/row.ts";
import { Counter, type SampleOptions, samplesOf } from "../samples/sample_cache.ts";
import { samplesOfList, type SampleStream, type TokenSample } from "../samples/sample.ts";
import type { Tokenizer } from "../tokenizer.ts";
import type { StreamItem } from "./read_window.ts";

/** Makes tokens of the contents of windows. */
export interface WindowEncoder {
  /** Changes with the tokens that the same contents give: hexadecimal. */
  readonly print: string;
  /** The data's name in errors. */
  readonly name: string;
  /** The columns that are read, of formats that keep columns apart. */
  readonly columns: readonly string[];
  /**
   * Makes tokens of a window; undefined of one without any.
   *
   * @param items reads the window's contents, with lines numbered from the beginning of their files if asked
   * @throws {ConfigError} naming file and line of what does not fit
   */
  encode(items: (numbersLines: boolean) => AsyncIterable<StreamItem>): Promise<TokenStream | SampleStream | undefined>;
}

/** Options of text. */
export interface TextEncoding {
  readonly tokenizer: Tokenizer;
  /** The column of rows that holds the text. */
  readonly textField: string;
  readonly name: string;
  readonly print: string;
}

/** The encoder of text. */
export function textEncoder({ tokenizer, textField, name, print }: TextEncoding): WindowEncoder {
  const eosId = eosOf(tokenizer);
  const textOfItem = (item: StreamItem): { readonly text: string; readonly isLast: boolean } => {
    if ("problem" in item) throw rowError(name, item, item.problem);
    if ("text" in item) return item;
    const refuse = (expected: string, got: string): ConfigError => rowError(name, item, { expected, got });
    return { text: textOf(item.value, textField, refuse), isLast: true };
  };
  const encode = async (items: AsyncIterable<StreamItem>): Promise<TokenStream | undefined> => {
    const parts: Int32Array[] = [];
    for await (const item of items) {
      const { text, isLast } = textOfItem(item);
      if (text === "") continue;
      parts.push(documentIds(text, item.file, tokenizer, isLast ? eosId : undefined));
    }
    const tokens = joined(parts);
    const lengths = Uint32Array.from(parts, ({ length }) => length);
    return tokens.length === 0 ? undefined : tokensInMemory(tokens, print, lengths);
  };
  return { print, name, columns: [textField], encode: (items) => withLines(items, encode) };
}

/** Numbers lines from the beginning of files where something is to be said of them. */
async function withLines<T>(
  items: (numbersLines: boolean) => AsyncIterable<StreamItem>,
  encode: (items: AsyncIterable<StreamItem>) => Promise<T>,
): Promise<T> {
  try {
    return await encode(items(false));
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return await encode(items(true));
  }
}

/** Options of rows. */
export interface RowStreamEncoding {
  readonly options: SampleOptions;
  readonly columns: readonly string[];
  readonly print: string;
  /** Receives the problems of the first rows that are skipped. */
  readonly report: (text: string) => void;
}

/** Windows whose skipped rows are reported. */
const MOST_REPORTS = 3;

/** The encoder of chats, prompts and preferences. */
export function rowEncoder({ options, columns, print, report }: RowStreamEncoding): WindowEncoder {
  let reports = 0;
  const encode = async (items: AsyncIterable<StreamItem>): Promise<{ samples: TokenSample[]; count: Counter }> => {
    const samples: TokenSample[] = [];
    const count = new Counter(options);
    for await (const sample of samplesOf({ rows: () => rowsOnly(items) }, options, count)) samples.push(sample);
    return { samples, count };
  };
  return {
    ...{ print, columns, name: options.name },
    encode: async (items) => {
      let encoded = await withLines(items, encode);
      if (encoded.count.skipped > 0 && reports < MOST_REPORTS) {
        reports++;
        encoded = await encode(items(true));
        report(
          `Skipped ${encoded.count.describeSkipped()}${reports === MOST_REPORTS ? "; no more is said of others" : ""}`,
        );
      }
      return encoded.samples.length === 0 ? undefined : samplesOfList(encoded.samples, print);
    },
  };
}

async function* rowsOnly(items: AsyncIterable<StreamItem>) {
  for await (const item of items) {
    if (!("text" in item)) yield item;
  }
}

function joined(parts: readonly Int32Array[]): Int32Array {
  const tokens = new Int32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    tokens.set(part, at);
    at += part.length;
  }
  return tokens;
}
