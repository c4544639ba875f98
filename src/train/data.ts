/**
 * The tokens of a run: rank 0 tokenizes what is not in the cache yet, the others wait for it.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { openText } from "../data/dataset.ts";
import { tokenCache, type TokenStream } from "../data/packing.ts";
import { loadTokenizer, type Tokenizer } from "../data/tokenizer.ts";
import { ConfigError } from "../errors.ts";
import type { Logger } from "../runtime/log.ts";
import type { DataConfig } from "./config.ts";
import { formatBytes } from "./progress.ts";

/** A tokenizer and the packed tokens that it made. */
export interface TokenData {
  readonly tokenizer: Tokenizer;
  readonly tokens: TokenStream;
}

/**
 * Opens tokenizer and tokens. Every rank must call it.
 *
 * @param fallbackTokenizer used when the configuration names none: the model's folder
 * @throws {ConfigError} if there is no data or no tokenizer
 */
export async function openTokenData(
  config: DataConfig,
  fallbackTokenizer: string | undefined,
  group: ProcessGroup,
  log: Logger,
): Promise<TokenData> {
  const place = config.tokenizer ?? fallbackTokenizer;
  if (place === undefined || config.data.length === 0) {
    throw new ConfigError([
      ...place === undefined ? [{ path: "tokenizer", expected: "a tokenizer.json or its folder", got: "nothing" }] : [],
      ...config.data.length === 0 ? [{ path: "data", expected: "files to train on", got: "nothing" }] : [],
    ]);
  }
  const tokenizer = await loadTokenizer(place);
  const source = openText(config.data, { field: config.textField });
  const cache = tokenCache(source, tokenizer, config.cache);
  await group.together("tokenize the data", async () => {
    if (group.rank > 0 || cache.exists()) return;
    log.info(`Tokenizing ${source.files.length} files, ${formatBytes(source.byteLength)}`);
    await cache.build();
  });
  return { tokenizer, tokens: cache.open() };
}
