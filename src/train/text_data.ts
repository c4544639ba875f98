/**
 * Text as the batches of a run: found, tokenized, packed, and divided among the ranks.
 *
 * @module
 */
import { openText, type TextSource } from "../data/documents.ts";
import { type Batch, DataLoader, type LoaderOptions } from "../data/loader.ts";
import { describeSkipped } from "../data/find_files.ts";
import { packInMemory, tokenCache, type TokenStream } from "../data/packing.ts";
import { BYTE_TOKENIZER, loadTokenizer, type Tokenizer } from "../data/tokenizer.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { filePath } from "../runtime/files.ts";
import { scope } from "../tensor/scope.ts";
import { requirePositions, requireVocabulary } from "./checks.ts";
import type { Run } from "./run.ts";

/** Options of {@link textData}. */
export interface TextDataOptions {
  /** Tokens of a sample. */
  readonly sequenceLength: number;
  /** Samples of a step, over all ranks and micro-batches. */
  readonly batch: number;
  /** Micro-batches that each rank computes its share of a step in. @default 1 */
  readonly microBatches?: number;
  /** A `tokenizer.json` or its folder. @default that of the model's folder, or bytes for a model from scratch */
  readonly tokenizer?: string | Tokenizer | undefined;
  /** The token that ends documents, for a tokenizer that is read from files. @default the one that these name */
  readonly eosToken?: string | undefined;
  /** Key of a .jsonl line that holds its text. @default text */
  readonly textField?: string;
  /** What the order is shuffled by. @default 0 */
  readonly seed?: number;
  /** Folder that keeps packed tokens for the next run. @default none: tokens are kept in memory, on every rank */
  readonly cache?: string;
  /** Called where text is tokenized into the cache, before. */
  readonly onTokenize?: (source: TextSource) => void;
}

/** Tokens that the beginning of a text is taken from. */
const BEGINNING_TOKENS = 16;

/** Batches, and the tokenizer that made them. */
export class TextData extends DataLoader implements Disposable {
  /** What made the tokens. */
  readonly tokenizer: Tokenizer;
  readonly #tokens: TokenStream;

  /** Use {@link textData}. */
  constructor(tokenizer: Tokenizer, options: LoaderOptions) {
    super(options);
    this.tokenizer = tokenizer;
    this.#tokens = options.tokens;
  }

  /** Gives `steps` steps, to be read by `for await`, whose body is a scope: tensors made in it are freed at its end. */
  override async *take(steps: number): AsyncGenerator<Batch> {
    for await (const batch of super.take(steps)) {
      using _frame = scope();
      yield batch;
    }
  }

  /** The first words of the text, at most `most` tokens: what a sample may go on from. Empty where the first text is. */
  async beginning(most: number = BEGINNING_TOKENS): Promise<string> {
    const ids = new Int32Array(Math.min(most, BEGINNING_TOKENS, this.#tokens.length));
    await this.#tokens.read(0, ids);
    const end = ids.indexOf(this.tokenizer.eosId ?? -1);
    const text = this.tokenizer.decode(end < 0 ? ids : ids.subarray(0, end)).replace(/\ufffd+$/, "");
    // A word that the limit cut would be gone on from wrongly.
    return end < 0 ? text.replace(/(?<=\s)\S+$/, "") : text;
  }

  /** Gives every sample once; a loop's body is a scope, as in {@link take}. */
  override async *[Symbol.asyncIterator](): AsyncGenerator<Batch> {
    for await (const batch of super[Symbol.asyncIterator]()) {
      using _frame = scope();
      yield batch;
    }
  }

  /** Closes the file of tokens. */
  [Symbol.dispose](): void {
    this.#tokens.close();
  }
}

/**
 * Opens text as batches for a model. Every rank must call it.
 *
 * @param inputs files, folders or patterns; `.jsonl` files hold one object a line, any other file is one document. Of folders,
 *   what is hidden, in `node_modules` or no UTF-8 text is skipped, and the group's report says so
 * @throws {ConfigError} naming every input that matches no file, text that cannot be read, or a tokenizer that makes ids which
 *   the model does not have
 * @throws {ArgumentError} if the batch cannot be divided among the ranks, or there is less text than one sample
 * @example
 * ```ts
 * import { launch, openModel, textData } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 257, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * const data = await textData(run, model, "README.md", { sequenceLength: 32, batch: 4 });
 * for await (const { microBatches } of data.take(2)) if (microBatches.length !== 1) throw new Error("one of 4 × 32");
 * ```
 */
export async function textData(
  { group }: Pick<Run, "group">,
  model: CausalLm,
  inputs: string | URL | readonly (string | URL)[],
  options: TextDataOptions,
): Promise<TextData> {
  const { sequenceLength, batch, microBatches = 1, seed = 0, cache, textField, eosToken } = options;
  const patterns = (typeof inputs === "string" || inputs instanceof URL ? [inputs] : inputs).map(filePath);
  const { tokenizer, source } = await group.together("open the text", async () => {
    const named = options.tokenizer ?? model.files?.folder ?? BYTE_TOKENIZER;
    const tokenizer = typeof named === "string" ? await loadTokenizer(named, { eosToken }) : named;
    if (eosToken !== undefined && typeof named !== "string") {
      const got = `${JSON.stringify(eosToken)} for '${named.path}', which has its own`;
      throw new ConfigError([{ path: "eosToken", expected: "a tokenizer that is read from files", got }]);
    }
    requireVocabulary(tokenizer, model);
    requirePositions(sequenceLength, model);
    return { tokenizer, source: openText(patterns, { field: textField }) };
  });
  const isLoaded = tokenizer !== options.tokenizer;
  if (isLoaded && tokenizer.eosNote !== undefined && group.rank === 0) group.report(tokenizer.eosNote);
  const skipped = source.skipped === undefined ? undefined : describeSkipped(source.skipped);
  if (skipped !== undefined && group.rank === 0) group.report(`Skipped ${skipped} in ${patterns.join(", ")}`);
  const tokens = await group.together("tokenize the text", async () => {
    if (cache === undefined) return await packInMemory(source, tokenizer);
    const kept = tokenCache(source, tokenizer, cache);
    if (group.rank > 0 || kept.exists()) return kept;
    options.onTokenize?.(source);
    await kept.build();
    return kept;
  });
  return new TextData(tokenizer, {
    tokens: "open" in tokens ? tokens.open() : tokens,
    ...{ sequenceLength, seed, microBatches, globalBatch: batch },
    ...{ rank: group.rank, worldSize: group.size },
  });
}
