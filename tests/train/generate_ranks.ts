/** The ranks' code of `generate_test.ts`. @module */
import { noGrad } from "../../src/autograd/mode.ts";
import { replicate } from "../../src/ddp/replicate.ts";
import { dtypeFrom, float32, int32 } from "../../src/dtype.ts";
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import type { CausalLm } from "../../src/models/causal_lm.ts";
import { buildModel } from "../../src/models/registry.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { generate, type GenerateOptions } from "../../src/train/generate.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** The model of these tests. */
export const SIZES: Readonly<Record<string, string | number>> = {
  ...{ model_type: "llama", vocab_size: 32, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2 },
  ...{ num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 40, initializer_range: 0.4 },
};

/** The parallelism and the computation of a model. */
export interface Mode {
  readonly strategy: "plain" | "fsdp" | "ddp";
  readonly precision: "float32" | "bfloat16";
}

/** The prompts of a rank. */
export interface GenerateOrders extends Mode {
  readonly texts: readonly (GenerateOptions & { readonly prompt: readonly number[] })[];
}

/** The tokens that a rank generated. */
export interface GenerateReport {
  readonly texts: readonly (readonly number[])[];
  /**
   * The largest difference between scores of a text that was given in parts and scores of a text that was given at once, and the
   * largest score.
   */
  readonly apart: number;
  readonly largest: number;
  /** Bytes in use before any text, after one, and after all. */
  readonly inUse: readonly number[];
}

function modelOf({ device, group }: WorldRank, { strategy, precision }: Mode): CausalLm {
  const model = buildModel(device, SIZES);
  if (strategy === "ddp") replicate(model, { mesh: group });
  if (strategy === "fsdp") {
    const options = { mesh: group, precision: { paramDtype: dtypeFrom(precision), reduceDtype: float32 } };
    for (const block of model.layers) fullyShard(block, options);
    fullyShard(model, options);
  }
  initializeParameters(model, 7);
  return model;
}

/** Generates texts; and gives a text to the model in one part and in several. */
export function generateAll(rank: WorldRank, orders: GenerateOrders): GenerateReport {
  const model = modelOf(rank, orders);
  const { allocator } = rank.device;
  const inUse = [allocator.stats.inUse];
  generate(model, [1], { maxNewTokens: 31 });
  inUse.push(allocator.stats.inUse);
  const texts = orders.texts.map(({ prompt, ...options }) => generate(model, prompt, options));
  inUse.push(allocator.stats.inUse);
  return { texts, ...compareParts(model, [5, 1, 1, 7, 2, 1]), inUse };
}

/** Scores of two texts, given to the model at once and in parts of this many tokens. */
function compareParts(model: CausalLm, parts: readonly number[]): { apart: number; largest: number } {
  using _frame = scope();
  const seq = parts.reduce((sum, part) => sum + part);
  const ids = tensor(model.device, Array.from({ length: 2 * seq }, (_, i) => i * i % 31), {
    shape: [2, seq],
    dtype: int32,
  });
  const whole = noGrad(() => model.call({ inputIds: ids })).logits;
  using cache = model.createCache(seq);
  let [apart, largest] = [0, 0];
  for (const part of parts) {
    const start = cache.length;
    const { logits } = noGrad(() => model.call({ inputIds: ids.narrow(1, start, part), pastKeyValues: cache }));
    const expected = whole?.narrow(1, start, part).contiguous().toArray() ?? [];
    for (const [i, value] of (logits?.toArray() ?? []).entries()) {
      apart = Math.max(apart, Math.abs(value - (expected[i] ?? NaN)));
      largest = Math.max(largest, Math.abs(value));
    }
  }
  return { apart, largest };
}

rankFunctions(import.meta.url, { generateAll });
