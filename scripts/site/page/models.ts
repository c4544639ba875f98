/**
 * Shapes of well-known models, as their `config.json` has them.
 *
 * @module
 */

/** A configuration of Hugging Face. */
export type ModelConfig = Readonly<Record<string, unknown>>;

const llama = { model_type: "llama", tie_word_embeddings: false, max_position_embeddings: 8192 };

/** Configurations by the names of their models. */
export const MODELS: Readonly<Record<string, ModelConfig>> = {
  "Llama 3.2, 1 B": {
    ...{ ...llama, tie_word_embeddings: true, vocab_size: 128256, hidden_size: 2048, intermediate_size: 8192 },
    ...{ num_hidden_layers: 16, num_attention_heads: 32, num_key_value_heads: 8, head_dim: 64 },
  },
  "Llama 3.1, 8 B": {
    ...{ ...llama, vocab_size: 128256, hidden_size: 4096, intermediate_size: 14336 },
    ...{ num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8 },
  },
  "Llama 3.1, 70 B": {
    ...{ ...llama, vocab_size: 128256, hidden_size: 8192, intermediate_size: 28672 },
    ...{ num_hidden_layers: 80, num_attention_heads: 64, num_key_value_heads: 8 },
  },
  "Qwen 2.5, 0.5 B": {
    ...{ model_type: "qwen2", tie_word_embeddings: true, max_position_embeddings: 32768, vocab_size: 151936 },
    ...{ hidden_size: 896, intermediate_size: 4864, num_hidden_layers: 24, num_attention_heads: 14 },
    ...{ num_key_value_heads: 2 },
  },
  "Qwen 2.5, 7 B": {
    ...{ model_type: "qwen2", tie_word_embeddings: false, max_position_embeddings: 32768, vocab_size: 152064 },
    ...{ hidden_size: 3584, intermediate_size: 18944, num_hidden_layers: 28, num_attention_heads: 28 },
    ...{ num_key_value_heads: 4 },
  },
  "Mistral 7 B": {
    ...{ model_type: "mistral", vocab_size: 32768, hidden_size: 4096, intermediate_size: 14336 },
    ...{ num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8, sliding_window: null },
    ...{ max_position_embeddings: 32768, tie_word_embeddings: false },
  },
};
