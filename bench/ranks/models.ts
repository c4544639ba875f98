/**
 * The models that benchmarks train.
 *
 * @module
 */

import { LLAMA_8M as EXAMPLE } from "../../examples/llama_8m.ts";

/** A model, and what a rank computes in a step. */
export interface BenchModel {
  readonly config: { readonly model_type: string; readonly vocab_size: number } & Readonly<Record<string, unknown>>;
  /** Samples of a rank. */
  readonly batch: number;
  /** Tokens of each. */
  readonly seq: number;
  /** Steps before those that are timed, and how many are. */
  readonly steps: { readonly warmUp: number; readonly timed: number };
}

/** Steps of models of which one takes a second or less: compilers of JavaScript work beside the first 20 of them. */
const MANY = { warmUp: 20, timed: 10 } as const;
/** Steps of the others, whose second one still takes memory that was not used before. */
const FEW = { warmUp: 2, timed: 3 } as const;

/** A Llama of 7.9 M parameters. */
export const LLAMA_8M: BenchModel = {
  config: EXAMPLE,
  batch: 4,
  seq: 256,
  steps: MANY,
};

/** The same model with few tokens, for eight ranks of which four share a core: so links take longer than what ranks compute. */
export const LLAMA_8M_SHORT: BenchModel = { ...LLAMA_8M, batch: 1, seq: 64, steps: { warmUp: 10, timed: 10 } };

/** A Llama of 110 M parameters, of which the embeddings are also the head's. */
export const LLAMA_110M: BenchModel = {
  config: {
    model_type: "llama",
    vocab_size: 32000,
    hidden_size: 768,
    intermediate_size: 2048,
    num_hidden_layers: 12,
    num_attention_heads: 12,
    num_key_value_heads: 12,
    max_position_embeddings: 1024,
    tie_word_embeddings: true,
  },
  batch: 2,
  seq: 256,
  steps: FEW,
};

/** A GPT-2 of 0.47 M parameters; bench/peers/jax_js_step.mjs has the same sizes. */
export const GPT_05M: BenchModel = {
  config: {
    model_type: "gpt2",
    vocab_size: 256,
    n_positions: 64,
    n_embd: 128,
    n_layer: 2,
    n_head: 4,
    resid_pdrop: 0,
    embd_pdrop: 0,
    attn_pdrop: 0,
    tie_word_embeddings: false,
  },
  batch: 8,
  seq: 64,
  steps: MANY,
};

/** A Llama of 0.6 B parameters. */
export const LLAMA_600M: BenchModel = {
  config: {
    model_type: "llama",
    vocab_size: 32000,
    hidden_size: 1536,
    intermediate_size: 4096,
    num_hidden_layers: 20,
    num_attention_heads: 12,
    num_key_value_heads: 4,
    max_position_embeddings: 2048,
  },
  batch: 1,
  seq: 256,
  steps: FEW,
};

/** A Llama of 1.1 B parameters, with the sizes of TinyLlama. */
export const LLAMA_1100M: BenchModel = {
  config: {
    model_type: "llama",
    vocab_size: 32000,
    hidden_size: 2048,
    intermediate_size: 5632,
    num_hidden_layers: 22,
    num_attention_heads: 32,
    num_key_value_heads: 4,
    max_position_embeddings: 2048,
  },
  batch: 1,
  seq: 256,
  steps: FEW,
};

/** The model of a step's case, by how the case's name begins. */
export function modelOfCase(name: string): BenchModel {
  const found = Object.entries({
    "gpt-0.5m": GPT_05M,
    "llama-8m-short": LLAMA_8M_SHORT,
    "llama-8m": LLAMA_8M,
    "llama-110m": LLAMA_110M,
  }).find(([begin]) => name === begin || name.startsWith(`${begin}-`));
  if (found === undefined) throw new Error(`no model of '${name}'`);
  return found[1];
}
