/**
 * Qwen3-MoE's `config.json`.
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
import { MIXTURE_KEYS, type MixtureConfig, resolveMixture, SPARSE_KEYS, sparseLayers } from "../mixture_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Qwen3MoeConfig extends DecoderConfig, MixtureConfig {
  /** Width of layers without a mixture. */
  readonly intermediateSize: number;
  /** Width of each expert. */
  readonly moeIntermediateSize: number;
  /** For each layer, true if it has a mixture. */
  readonly sparse: readonly boolean[];
  /** True if the weights of a token are divided by their sum. */
  readonly normalize: boolean;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
  /** Attention window of all layers. */
  readonly window: number | undefined;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...MIXTURE_KEYS,
  ...SPARSE_KEYS,
  num_key_value_heads: size.nullish().default(4),
  num_experts_per_tok: size.default(8),
  intermediate_size: size.default(6144),
  moe_intermediate_size: size.default(768),
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(32768),
  rms_norm_eps: positive.default(1e-6),
  attention_bias: z.boolean().default(false),
  use_sliding_window: z.boolean().default(false),
  sliding_window: size.nullish().default(4096),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveQwen3MoeConfig(hfConfig: Readonly<Record<string, unknown>>): Qwen3MoeConfig {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  return {
    ...decoder,
    ...resolveMixture(raw, 128),
    intermediateSize: raw.intermediate_size,
    moeIntermediateSize: raw.moe_intermediate_size,
    sparse: sparseLayers(raw, decoder.numLayers),
    normalize: raw.norm_topk_prob,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000 }),
    attentionBias: raw.attention_bias,
    window: raw.use_sliding_window ? raw.sliding_window ?? undefined : undefined,
  };
}
