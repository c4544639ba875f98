/**
 * The windows of one source of data, in the order of each epoch, divided among lanes.
 *
 * Note [Lanes]: a stream gives its rows from several lanes in turn. Of L lanes, each takes every L-th window of an epoch, so a rank that
 * takes the rows of some lanes reads and tokenizes their windows alone. The number of lanes depends on the data alone: the same rows
 * follow each other on any number of ranks. Files that can only be read from their beginning have one lane, whose windows lie in the
 * order of the files.
 *
 * @module
 */
import { at } from "../../at.ts";
import { sha256 } from "../../runtime/checksum.ts";
import { fileByteLength } from "../../runtime/files.ts";
import { keyOf, Permutation } from "../../random.ts";
import { contentBlocks } from "../fingerprints.ts";
import type { TokenStream } from "../token_stream.ts";
import type { SampleStream } from "../samples/sample.ts";
import type { WindowEncoder } from "./encode_window.ts";
import { itemsOfWindow, type StreamItem } from "./read_window.ts";
import { SequentialWindows } from "./sequential.ts";
import { planWindows, type StreamWindow } from "./windows.ts";

/** Most lanes of a source. */
const MOST_LANES = 16;
/** Least windows of a lane, so that lanes have about as many. */
const LEAST_WINDOWS = 4;
/** Windows that hold as many rows of a sequential source as all lanes of others do, so that its rows are shuffled alike. */
const SEQUENTIAL_WINDOWS = 4;

/** Tokens of a window, or its samples. */
export type WindowTokens = TokenStream | SampleStream;

/** Windows, tokenized one at a time. */
export interface WindowSource {
  readonly lanes: number;
  /** The data's name in errors. */
  readonly name: string;
  readonly files: readonly string[];
  /** Bytes of the files. */
  readonly byteLength: number;
  /** Changes with the data and their tokens: hexadecimal, equal on every rank. */
  readonly fingerprint: string;
  /** Number of the window that is a lane's `turn`-th in an epoch, among all of the epoch. */
  numberOf(lane: number, turn: number): number;
  /**
   * Tokens of a window of an epoch.
   *
   * @returns `undefined` behind the last; `"empty"` of a window that has none
   * @throws {ConfigError} naming file and line of what does not fit
   * @throws {FileError} if a file cannot be read
   */
  read(epoch: number, number: number): Promise<WindowTokens | "empty" | undefined>;
  /** The same, in the order of the files, as an evaluation reads them. */
  readInOrder(number: number): Promise<WindowTokens | "empty" | undefined>;
  /** Gives up open files. */
  close(): void;
}

/** Options of {@link openWindows}. */
export interface WindowSourceOptions {
  readonly files: readonly string[];
  /** Files that hold one document of text each. */
  readonly isText: (file: string) => boolean;
  readonly encoder: WindowEncoder;
  /** Bytes of a window, about. */
  readonly windowBytes: number;
  /** Seed of the order of windows. */
  readonly seed: number;
}

/**
 * Opens files as windows. Of each file only its size and some blocks are read.
 *
 * @throws {FileError} if a file cannot be read
 */
export async function openWindows(options: WindowSourceOptions): Promise<WindowSource> {
  const { files, isText, encoder, windowBytes, seed } = options;
  const { columns, name } = encoder;
  const windows = await planWindows(files, { columns, isText, windowBytes });
  const fingerprint = sha256([`stream 1 ${windowBytes} ${encoder.print}\n`, ...contentBlocks(files)]);
  const byteLength = files.reduce((sum, file) => sum + fileByteLength(file), 0);
  const facts = { name, files, byteLength, fingerprint };
  if (windows !== undefined) return { ...facts, ...seekable(windows, encoder, seed) };
  const sequential = { files, isText, columns, windowBytes: windowBytes * SEQUENTIAL_WINDOWS, name };
  return { ...facts, ...inOrder(new SequentialWindows(sequential), encoder) };
}

type WindowAccess = Pick<WindowSource, "lanes" | "numberOf" | "read" | "readInOrder" | "close">;

function seekable(windows: readonly StreamWindow[], encoder: WindowEncoder, seed: number): WindowAccess {
  const lanes = Math.max(1, Math.min(MOST_LANES, Math.floor(windows.length / LEAST_WINDOWS)));
  const key = keyOf(seed, "order of windows");
  const encode = async (number: number): Promise<WindowTokens | "empty"> => {
    const window = at(windows, number, "window");
    const items = (numbersLines: boolean): AsyncIterable<StreamItem> =>
      itemsOfWindow(window, { columns: encoder.columns, numbersLines });
    return await encoder.encode(items) ?? "empty";
  };
  return {
    lanes,
    numberOf: (lane, turn) => turn * lanes + lane,
    read: async (epoch, number) =>
      number < windows.length ? await encode(new Permutation(windows.length, key, epoch).at(number)) : undefined,
    readInOrder: async (number) => number < windows.length ? await encode(number) : undefined,
    close: () => undefined,
  };
}

function inOrder(windows: SequentialWindows, encoder: WindowEncoder): WindowAccess {
  const readInOrder = async (number: number): Promise<WindowTokens | "empty" | undefined> => {
    const items = await windows.read(number);
    return items === undefined ? undefined : await encoder.encode(() => toAsync(items)) ?? "empty";
  };
  return {
    lanes: 1,
    numberOf: (_lane, turn) => turn,
    read: (_epoch, number) => readInOrder(number),
    readInOrder,
    close: () => windows.close(),
  };
}

async function* toAsync<T>(values: Iterable<T>): AsyncGenerator<T> {
  yield* values;
}
