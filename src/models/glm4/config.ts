/**
 * GLM-4's `config.json`, of its dense models of 2025 (GLM-4-0414).
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
  resolveActivation,
  resolveDecoder,
  size,
} from "../decoder_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Glm4Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  num_key_value_heads: size.nullish().default(2),
  head_dim: size.nullish().default(128),
  intermediate_size: size,
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(131072),
  pad_token_id: z.int().nullish().default(151329),
  rms_norm_eps: positive.default(1.5625e-7),
  attention_bias: z.boolean().default(true),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGlm4Config(hfConfig: Readonly<Record<string, unknown>>): Glm4Config {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000, partial: 0.5 }),
    attentionBias: raw.attention_bias,
  };
}
