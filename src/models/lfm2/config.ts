/**
 * LFM2's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import type { RotaryOptions } from "../../nn/rotary.ts";
import {
  DECODER_KEYS,
  type DecoderConfig,
  positive,
  resolveDecoder,
  resolveLayerTypes,
  size,
} from "../decoder_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Lfm2Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly normEps: number;
  readonly rope: RotaryOptions;
  readonly layerTypes: readonly ("full_attention" | "conv")[];
  /** Tokens that each one sees in a convolution, itself included. */
  readonly convWidth: number;
  readonly convBias: boolean;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  num_key_value_heads: size.nullish().default(8),
  intermediate_size: size.default(12288),
  block_ff_dim: size.nullish(),
  block_auto_adjust_ff_dim: z.boolean().default(true),
  block_ffn_dim_multiplier: positive.nullish().default(1),
  block_multiple_of: size.default(256),
  max_position_embeddings: size.default(128000),
  pad_token_id: z.int().nullish().default(0),
  norm_eps: positive.default(1e-5),
  conv_L_cache: size.default(3),
  conv_bias: z.boolean().default(false),
  full_attn_idxs: z.array(z.int()).nullish(),
  layer_types: z.array(z.string()).nullish(),
  tie_word_embeddings: z.boolean().default(true),
  tie_embedding: z.boolean().nullish(),
});

/** The width of the feed-forward: two thirds of the one given, times a factor, rounded up, where the config wants that. */
function intermediateSizeOf(raw: z.infer<typeof schema>): number {
  const given = raw.block_ff_dim ?? raw.intermediate_size;
  if (!raw.block_auto_adjust_ff_dim) return given;
  const adjusted = Math.trunc(2 * given / 3);
  if (raw.block_ffn_dim_multiplier == null) return adjusted;
  const multiple = raw.block_multiple_of;
  return multiple * Math.ceil(Math.trunc(raw.block_ffn_dim_multiplier * adjusted) / multiple);
}

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveLfm2Config(hfConfig: Readonly<Record<string, unknown>>): Lfm2Config {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder({
    ...raw,
    // The family knows none, as in transformers.
    attention_dropout: 0,
    tie_word_embeddings: raw.tie_embedding ?? raw.tie_word_embeddings,
  });
  const types = ["full_attention", "conv"] as const;
  return {
    ...decoder,
    intermediateSize: intermediateSizeOf(raw),
    normEps: raw.norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 1000000 }),
    layerTypes: resolveLayerTypes(
      raw.layer_types,
      decoder.numLayers,
      types,
      (i) => types[raw.full_attn_idxs?.includes(i) ?? true ? 0 : 1],
    ),
    convWidth: raw.conv_L_cache,
    convBias: raw.conv_bias,
  };
}
