/** The ranks' code of `text_data_test.ts`. @module */
import { BYTE_TOKENIZER } from "../../src/data/tokenizer.ts";
import { openModel } from "../../src/train/open_model.ts";
import { Run } from "../../src/train/run.ts";
import { textData } from "../../src/train/text_data.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** The text, tokenizer and cache of each rank. */
export interface TextOrders {
  readonly localWorldSize: number;
  readonly texts: readonly string[];
  readonly tokenizers?: readonly string[];
  readonly caches?: readonly string[];
}

/** The batches of a rank. */
export interface TextReport {
  readonly error: string;
  readonly dataset: string;
  readonly numSamples: number | undefined;
}

/** Opens the text of this rank. */
export async function openOwnText({ device, group, rank }: WorldRank, orders: TextOrders): Promise<TextReport> {
  const { localWorldSize, texts, tokenizers, caches } = orders;
  const run = new Run({ device, group, localWorldSize, print: () => {} });
  const sizes = {
    vocab_size: 257,
    hidden_size: 16,
    intermediate_size: 16,
    num_hidden_layers: 1,
    num_attention_heads: 2,
  };
  const model = await openModel(run, { model_type: "llama", ...sizes });
  const tokenizer = { ...BYTE_TOKENIZER, fingerprint: tokenizers?.[rank] ?? "bytes" };
  const cache = caches?.[rank];
  const where = cache === undefined ? {} : { cache };
  try {
    using data = await textData(run, model, texts[rank] ?? "", {
      sequenceLength: 8,
      batch: group.size,
      tokenizer,
      ...where,
    });
    return { error: "", dataset: data.state().dataset, numSamples: data.numSamples };
  } catch (error) {
    return {
      error: error instanceof Error ? `${error.name}: ${error.message}` : String(error),
      dataset: "",
      numSamples: 0,
    };
  }
}

rankFunctions(import.meta.url, { openOwnText });
