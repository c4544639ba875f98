/**
 * Opens data as a stream: windows of its files are tokenized while they are trained on.
 *
 * @module
 */
import { at } from "../at.ts";
import { StreamedRows, type StreamPart } from "../data/stream/streamed_rows.ts";
import { openWindows, type WindowSource, type WindowSourceOptions } from "../data/stream/window_source.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { agreedText, packingOf, type PreparedSource, requireOnePacking } from "./data_source.ts";
import type { Run } from "./run.ts";
import type { TextDataOptions } from "./text_data.ts";

/** Bytes of data from which on it is streamed unless asked otherwise: tokenizing as much takes minutes. */
const STREAMED_BYTES = 2 ** 30;
/** Least bytes of a window, and least rows that it is to have, by a usual number of bytes a token. */
const LEAST_WINDOW_BYTES = 2 ** 18;
const LEAST_WINDOW_ROWS = 64;
const BYTES_OF_TOKEN = 4;

/** True if data is to be streamed. */
export function isStreamed(
  sources: readonly PreparedSource[],
  { streaming }: Pick<TextDataOptions, "streaming">,
): boolean {
  return streaming ?? sources.reduce((sum, { source }) => sum + source.byteLength, 0) > STREAMED_BYTES;
}

/**
 * Opens sources as a stream. Every rank must call it.
 *
 * @throws {ConfigError} for ranks with different data, and sources of several packings
 */
export async function openStream(
  { group }: Pick<Run, "group">,
  sources: readonly PreparedSource[],
  tokenizer: Tokenizer,
  options: TextDataOptions,
): Promise<StreamedRows> {
  const { sequenceLength, seed = 0, name = "data", padTo, isPreference: isPairs = false } = options;
  const windowBytes = Math.max(LEAST_WINDOW_BYTES, LEAST_WINDOW_ROWS * sequenceLength * BYTES_OF_TOKEN);
  using opening = new DisposableStack();
  const parts: StreamPart[] = [];
  for (const { source, weight = 1 } of sources) {
    const encoder = source.encoder((text) => group.report(`${name}: ${text}`));
    const given: WindowSourceOptions = { ...source.inWindows, encoder, windowBytes, seed };
    const windows = await group.together("divide the data into windows", async (): Promise<WindowSource> => {
      const windows = await openWindows(given);
      opening.defer(() => windows.close());
      return windows;
    });
    agreedText(group, { source, tokenizer, text: windows.fingerprint }, name);
    parts.push({ windows, weight });
  }
  const packings = sources.map(({ source }) => ({ files: source.files, packing: packingOf(source, options) }));
  requireOnePacking(packings, name);
  const { packing } = at(packings, 0, "source");
  opening.move();
  return new StreamedRows(parts, { sequenceLength, packing, seed, padTo, isPairs });
}
