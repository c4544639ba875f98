/**
 * ModernBERT decoder's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import type { Activation } from "../../nn/feed_forward.ts";
import type { Init } from "../../tensor/parameter.ts";
import {
  DECODER_KEYS,
  type DecoderConfig,
  positive,
  probability,
  requireImplemented,
  resolveActivation,
  resolveDecoder,
  resolveLayerTypes,
  size,
  windowsOf,
} from "../decoder_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRotations, ROPE_KEYS, type Rotations } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface ModernBertDecoderConfig extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly normEps: number;
  readonly normBias: boolean;
  readonly rotations: Rotations;
  readonly attentionBias: boolean;
  readonly mlpBias: boolean;
  readonly layerTypes: readonly (keyof Rotations)[];
  /** Attention window of each layer. */
  readonly windows: readonly (number | undefined)[];
  /** Initialization of weights that lead back to the residual. */
  readonly outInit: Init;
  /** Probabilities that an element of the embedding, or inside a feed-forward, becomes zero in training. */
  readonly embedDropout: number;
  readonly mlpDropout: number;
  readonly head: { readonly activation: Activation; readonly denseBias: boolean; readonly bias: boolean };
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  intermediate_size: size,
  hidden_activation: z.string().default("gelu"),
  max_position_embeddings: size.default(8192),
  pad_token_id: z.int().nullish().default(50283),
  norm_eps: positive.default(1e-5),
  norm_bias: z.boolean().default(false),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  decoder_bias: z.boolean().default(true),
  classifier_bias: z.boolean().default(false),
  classifier_activation: z.string().default("gelu"),
  embedding_dropout: probability.default(0),
  mlp_dropout: probability.default(0),
  local_attention: size.nullish().default(128),
  sliding_window: z.int().nullish(),
  layer_types: z.array(z.string()).nullish(),
  global_attn_every_n_layers: size.default(3),
  global_rope_theta: positive.default(160000),
  local_rope_theta: positive.default(10000),
  tie_word_embeddings: z.boolean().default(true),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveModernBertDecoderConfig(hfConfig: Readonly<Record<string, unknown>>): ModernBertDecoderConfig {
  const raw = parseRawConfig(schema, hfConfig);
  requireImplemented({
    num_key_value_heads: [raw.num_key_value_heads ?? raw.num_attention_heads, raw.num_attention_heads],
    head_dim: [raw.head_dim ?? raw.hidden_size / raw.num_attention_heads, raw.hidden_size / raw.num_attention_heads],
  });
  const decoder = resolveDecoder(raw);
  const types = ["full_attention", "sliding_attention"] as const;
  const layerTypes = resolveLayerTypes(
    raw.layer_types,
    decoder.numLayers,
    types,
    (i) => types[i % raw.global_attn_every_n_layers === 0 ? 0 : 1],
  );
  const half = raw.local_attention == null ? undefined : Math.floor(raw.local_attention / 2);
  const theta = { full_attention: raw.global_rope_theta, sliding_attention: raw.local_rope_theta };
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_activation", raw.hidden_activation),
    normEps: raw.norm_eps,
    normBias: raw.norm_bias,
    rotations: resolveRotations(raw, decoder.headDim, theta, ["full_attention", "sliding_attention"]),
    attentionBias: raw.attention_bias,
    mlpBias: raw.mlp_bias,
    layerTypes,
    windows: windowsOf(layerTypes, raw.sliding_window ?? half),
    embedDropout: raw.embedding_dropout,
    mlpDropout: raw.mlp_dropout,
    outInit: { kind: "normal", mean: 0, std: raw.initializer_range / Math.sqrt(2 * decoder.numLayers) },
    head: {
      activation: resolveActivation("classifier_activation", raw.classifier_activation),
      denseBias: raw.classifier_bias,
      bias: raw.decoder_bias,
    },
  };
}
