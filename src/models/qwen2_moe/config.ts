/**
 * Qwen2-MoE's `config.json`.
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
  resolveLayerTypes,
  size,
  windowsOf,
} from "../decoder_config.ts";
import { MIXTURE_KEYS, type MixtureConfig, resolveMixture, SPARSE_KEYS, sparseLayers } from "../mixture_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Qwen2MoeConfig extends DecoderConfig, MixtureConfig {
  /** Width of layers without a mixture. */
  readonly intermediateSize: number;
  /** Width of each expert. */
  readonly moeIntermediateSize: number;
  /** Width of the expert that all tokens go to. */
  readonly sharedIntermediateSize: number;
  /** For each layer, true if it has a mixture. */
  readonly sparse: readonly boolean[];
  /** True if the weights of a token are divided by their sum. */
  readonly normalize: boolean;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly qkvBias: boolean;
  /** Attention window of each layer. */
  readonly windows: readonly (number | undefined)[];
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...MIXTURE_KEYS,
  ...SPARSE_KEYS,
  num_key_value_heads: size.nullish().default(16),
  num_experts_per_tok: size.default(4),
  intermediate_size: size.default(5632),
  moe_intermediate_size: size.default(1408),
  shared_expert_intermediate_size: size.default(5632),
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(32768),
  rms_norm_eps: positive.default(1e-6),
  qkv_bias: z.boolean().default(true),
  use_sliding_window: z.boolean().default(false),
  sliding_window: z.int().nonnegative().nullish().default(4096),
  max_window_layers: z.int().default(28),
  layer_types: z.array(z.string()).nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveQwen2MoeConfig(hfConfig: Readonly<Record<string, unknown>>): Qwen2MoeConfig {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  const window = raw.use_sliding_window ? raw.sliding_window : undefined;
  const types = ["full_attention", "sliding_attention"] as const;
  const slides = (layer: number): boolean => window != null && layer % 2 === 0 && layer < raw.max_window_layers;
  const layerTypes = resolveLayerTypes(raw.layer_types, decoder.numLayers, types, (i) => types[slides(i) ? 1 : 0]);
  return {
    ...decoder,
    ...resolveMixture(raw, 60),
    intermediateSize: raw.intermediate_size,
    moeIntermediateSize: raw.moe_intermediate_size,
    sharedIntermediateSize: raw.shared_expert_intermediate_size,
    sparse: sparseLayers(raw, decoder.numLayers),
    normalize: raw.norm_topk_prob,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000 }),
    qkvBias: raw.qkv_bias,
    windows: windowsOf(layerTypes, window),
  };
}
