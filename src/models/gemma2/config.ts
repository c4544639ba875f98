/**
 * Gemma 2's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import type { Activation } from "../../nn/feed_forward.ts";
import type { RotaryOptions } from "../../nn/rotary.ts";
import {
  DECODER_KEYS,
  type DecoderConfig,
  positive,
  requireImplemented,
  resolveActivation,
  resolveDecoder,
  resolveLayerTypes,
  size,
  windowsOf,
} from "../decoder_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Gemma2Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
  /** Factor on q·k. */
  readonly attentionScale: number;
  /** Bound of attention's scores, and of logits. */
  readonly attentionSoftcap: number | undefined;
  readonly logitsSoftcap: number | undefined;
  /** Attention window of each layer. */
  readonly windows: readonly (number | undefined)[];
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  vocab_size: size.default(256000),
  hidden_size: size.default(2304),
  num_hidden_layers: size.default(26),
  num_attention_heads: size.default(8),
  num_key_value_heads: size.nullish().default(4),
  head_dim: size.nullish().default(256),
  intermediate_size: size.default(9216),
  hidden_activation: z.string().default("gelu_pytorch_tanh"),
  max_position_embeddings: size.default(8192),
  pad_token_id: z.int().nullish().default(0),
  rms_norm_eps: positive.default(1e-6),
  attention_bias: z.boolean().default(false),
  tie_word_embeddings: z.boolean().default(true),
  query_pre_attn_scalar: positive.default(256),
  sliding_window: size.nullish().default(4096),
  layer_types: z.array(z.string()).nullish(),
  final_logit_softcapping: positive.nullish().default(30),
  attn_logit_softcapping: positive.nullish().default(50),
  use_bidirectional_attention: z.boolean().nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGemma2Config(hfConfig: Readonly<Record<string, unknown>>): Gemma2Config {
  const raw = parseRawConfig(schema, hfConfig);
  requireImplemented({
    use_bidirectional_attention: [raw.use_bidirectional_attention ?? false, false],
  });
  const decoder = resolveDecoder(raw);
  const types = ["sliding_attention", "full_attention"] as const;
  const layerTypes = resolveLayerTypes(raw.layer_types, decoder.numLayers, types, (i) => types[i % 2 === 0 ? 0 : 1]);
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_activation", raw.hidden_activation),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000 }),
    attentionBias: raw.attention_bias,
    attentionScale: 1 / Math.sqrt(raw.query_pre_attn_scalar),
    attentionSoftcap: raw.attn_logit_softcapping ?? undefined,
    logitsSoftcap: raw.final_logit_softcapping ?? undefined,
    windows: windowsOf(layerTypes, raw.sliding_window),
  };
}
