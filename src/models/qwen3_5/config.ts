/**
 * The `config.json` of Qwen3.5's text models.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError } from "../../errors.ts";
import type { Activation } from "../../nn/feed_forward.ts";
import type { GatedDeltaNetOptions } from "../../nn/gated_delta_net.ts";
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
} from "../decoder_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Everything that decides what the model computes. */
export interface Qwen35Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
  readonly layerTypes: readonly ("full_attention" | "linear_attention")[];
  /** Layers of linear attention. */
  readonly linear: GatedDeltaNetOptions;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  num_key_value_heads: size.nullish().default(4),
  head_dim: size.nullish().default(256),
  intermediate_size: size,
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(32768),
  rms_norm_eps: positive.default(1e-6),
  attention_bias: z.boolean().default(false),
  attention_dropout: z.number().default(0),
  linear_conv_kernel_dim: size.default(4),
  linear_key_head_dim: size.default(128),
  linear_value_head_dim: size.default(128),
  linear_num_key_heads: size.default(16),
  linear_num_value_heads: size.default(32),
  full_attention_interval: size.default(4),
  layer_types: z.array(z.string()).nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveQwen35Config(hfConfig: Readonly<Record<string, unknown>>): Qwen35Config {
  const raw = parseRawConfig(schema, hfConfig);
  requireImplemented({ attention_dropout: [raw.attention_dropout, 0] });
  const decoder = resolveDecoder(raw);
  const types = ["full_attention", "linear_attention"] as const;
  const activation = resolveActivation("hidden_act", raw.hidden_act);
  const [keyHeads, valueHeads] = [raw.linear_num_key_heads, raw.linear_num_value_heads];
  if (valueHeads % keyHeads !== 0) {
    const expected = `a divisor of linear_num_value_heads ${valueHeads}`;
    throw new ConfigError([{ path: "config.json linear_num_key_heads", expected, got: String(keyHeads) }]);
  }
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation,
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000, partial: 0.25 }),
    attentionBias: raw.attention_bias,
    layerTypes: resolveLayerTypes(
      raw.layer_types,
      decoder.numLayers,
      types,
      (i) => types[(i + 1) % raw.full_attention_interval === 0 ? 0 : 1],
    ),
    linear: {
      hiddenSize: decoder.hiddenSize,
      keyHeads,
      valueHeads,
      keyDim: raw.linear_key_head_dim,
      valueDim: raw.linear_value_head_dim,
      convWidth: raw.linear_conv_kernel_dim,
      activation,
      eps: raw.rms_norm_eps,
      init: decoder.init,
    },
  };
}
