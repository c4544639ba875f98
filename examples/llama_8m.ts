/**
 * A Llama of 7.9 M parameters.
 *
 * @module
 */

/** Its `config.json`. */
export const LLAMA_8M = {
  architectures: ["LlamaForCausalLM"],
  model_type: "llama",
  vocab_size: 4096,
  hidden_size: 256,
  intermediate_size: 688,
  num_hidden_layers: 8,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  max_position_embeddings: 256,
  rms_norm_eps: 1e-6,
  rope_theta: 10000,
  initializer_range: 0.02,
  tie_word_embeddings: false,
  bos_token_id: 0,
  eos_token_id: 0,
} as const;
