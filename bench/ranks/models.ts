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
}

/** A Llama of 7.9 M parameters. */
export const LLAMA_8M: BenchModel = {
  config: EXAMPLE,
  batch: 4,
  seq: 256,
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
};
