/**
 * The `config.json` of Gemma 3's text models.
 *
 * @module
 */
import * as z from "zod";
import type { Activation } from "../../nn/feed_forward.ts";
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
import { resolveRotations, ROPE_KEYS, type Rotations } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Gemma3Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rotations: Rotations;
  readonly attentionBias: boolean;
  /** Factor on q·k. */
  readonly attentionScale: number;
  /** Bound of logits. */
  readonly logitsSoftcap: number | undefined;
  readonly layerTypes: readonly (keyof Rotations)[];
  /** Attention window of each layer. */
  readonly windows: readonly (number | undefined)[];
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  vocab_size: size.default(262208),
  hidden_size: size.default(2304),
  num_hidden_layers: size.default(26),
  num_attention_heads: size.default(8),
  num_key_value_heads: size.nullish().default(4),
  head_dim: size.nullish().default(256),
  intermediate_size: size.default(9216),
  hidden_activation: z.string().default("gelu_pytorch_tanh"),
  max_position_embeddings: size.default(131072),
  pad_token_id: z.int().nullish().default(0),
  rms_norm_eps: positive.default(1e-6),
  attention_bias: z.boolean().default(false),
  tie_word_embeddings: z.boolean().default(true),
  query_pre_attn_scalar: positive.default(256),
  sliding_window: size.nullish().default(4096),
  sliding_window_pattern: size.nullish().default(6),
  layer_types: z.array(z.string()).nullish(),
  rope_local_base_freq: positive.default(10000),
  final_logit_softcapping: positive.nullish(),
  use_bidirectional_attention: z.boolean().nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGemma3Config(hfConfig: Readonly<Record<string, unknown>>): Gemma3Config {
  const raw = parseRawConfig(schema, hfConfig);
  requireImplemented({
    use_bidirectional_attention: [raw.use_bidirectional_attention ?? false, false],
  });
  const decoder = resolveDecoder(raw);
  const types = ["sliding_attention", "full_attention"] as const;
  const pattern = raw.sliding_window_pattern ?? 6;
  const layerTypes = resolveLayerTypes(
    raw.layer_types,
    decoder.numLayers,
    types,
    (i) => types[(i + 1) % pattern === 0 ? 1 : 0],
  );
  const theta = { full_attention: raw.rope_theta ?? 1000000, sliding_attention: raw.rope_local_base_freq };
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_activation", raw.hidden_activation),
    rmsNormEps: raw.rms_norm_eps,
    rotations: resolveRotations(raw, decoder.headDim, theta, ["full_attention"]),
    attentionBias: raw.attention_bias,
    attentionScale: 1 / Math.sqrt(raw.query_pre_attn_scalar),
    logitsSoftcap: raw.final_logit_softcapping ?? undefined,
    layerTypes,
    windows: windowsOf(layerTypes, raw.sliding_window),
  };
}
