/**
 * GPT-2's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import type { Activation } from "../../nn/feed_forward.ts";
import type { Init } from "../../tensor/parameter.ts";
import {
  type DecoderConfig,
  positive,
  probability,
  requireImplemented,
  resolveActivation,
  resolveDecoder,
  size,
} from "../decoder_config.ts";
import { parseRawConfig } from "../raw_config.ts";

/** Resolved configuration of the model. */
export interface Gpt2Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly layerNormEps: number;
  /** Factors on q·k, by layer. */
  readonly scales: readonly number[];
  /** Initialization of weights that lead back to the residual. */
  readonly outInit: Init;
  /** Probabilities that an element of what attention and feed-forward give, and of the embedding, becomes zero in training. */
  readonly residDropout: number;
  readonly embedDropout: number;
}

const schema = z.looseObject({
  vocab_size: size,
  n_positions: size,
  n_embd: size,
  n_layer: size,
  n_head: size,
  n_inner: size.nullish(),
  activation_function: z.string().default("gelu_new"),
  resid_pdrop: probability.default(0.1),
  embd_pdrop: probability.default(0.1),
  attn_pdrop: probability.default(0.1),
  layer_norm_epsilon: positive.default(1e-5),
  initializer_range: positive.default(0.02),
  scale_attn_weights: z.boolean().default(true),
  scale_attn_by_inverse_layer_idx: z.boolean().default(false),
  add_cross_attention: z.boolean().default(false),
  tie_word_embeddings: z.boolean().default(true),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGpt2Config(hfConfig: Readonly<Record<string, unknown>>): Gpt2Config {
  const raw = parseRawConfig(schema, hfConfig);
  requireImplemented({ add_cross_attention: [raw.add_cross_attention, false] });
  const decoder = resolveDecoder({
    vocab_size: raw.vocab_size,
    hidden_size: raw.n_embd,
    num_hidden_layers: raw.n_layer,
    num_attention_heads: raw.n_head,
    max_position_embeddings: raw.n_positions,
    initializer_range: raw.initializer_range,
    tie_word_embeddings: raw.tie_word_embeddings,
    attention_dropout: raw.attn_pdrop,
  });
  const { numLayers, hiddenSize, headDim } = decoder;
  const scale = raw.scale_attn_weights ? 1 / Math.sqrt(headDim) : 1;
  return {
    ...decoder,
    intermediateSize: raw.n_inner ?? 4 * hiddenSize,
    activation: resolveActivation("activation_function", raw.activation_function),
    layerNormEps: raw.layer_norm_epsilon,
    scales: Array.from({ length: numLayers }, (_, i) => raw.scale_attn_by_inverse_layer_idx ? scale / (i + 1) : scale),
    residDropout: raw.resid_pdrop,
    embedDropout: raw.embd_pdrop,
    outInit: { kind: "normal", mean: 0, std: raw.initializer_range / Math.sqrt(2 * numLayers) },
  };
}
