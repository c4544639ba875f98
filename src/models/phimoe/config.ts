/**
 * PhiMoE's `config.json`.
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
  size,
} from "../decoder_config.ts";
import { MIXTURE_KEYS, type MixtureConfig, noise, resolveMixture } from "../mixture_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface PhimoeConfig extends DecoderConfig, MixtureConfig {
  /** Width of each expert. */
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly layerNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
  readonly headBias: boolean;
  /** Attention window of all layers. */
  readonly window: number | undefined;
  /** Largest distance of an expert from the best. */
  readonly jitter: number;
  readonly jitters: readonly number[];
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...MIXTURE_KEYS,
  num_key_value_heads: size.nullish().default(8),
  intermediate_size: size,
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(131072),
  rms_norm_eps: positive.default(1e-5),
  attention_bias: z.boolean().default(false),
  lm_head_bias: z.boolean().default(false),
  router_jitter_noise: z.number().default(0.01),
  input_jitter_noise: noise.default(0),
  sliding_window: size.nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolvePhimoeConfig(hfConfig: Readonly<Record<string, unknown>>): PhimoeConfig {
  const raw = parseRawConfig(schema, hfConfig);
  requireImplemented({ num_experts_per_tok: [raw.num_experts_per_tok, 2] });
  const decoder = resolveDecoder(raw);
  return {
    ...decoder,
    ...resolveMixture(raw, 16),
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    layerNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 1000000, types: ["default", "longrope"], mscales: true }),
    attentionBias: raw.attention_bias,
    headBias: raw.lm_head_bias,
    window: raw.sliding_window ?? undefined,
    // The block draws a number, and its router a second one.
    jitters: [raw.input_jitter_noise, raw.input_jitter_noise],
    jitter: raw.router_jitter_noise,
  };
}
