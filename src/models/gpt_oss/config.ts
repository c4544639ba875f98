/**
 * gpt-oss' `config.json`.
 *
 * @module
 */
import * as z from "zod";
import type { ClampedSwigluAttrs } from "../../ops/experts.ts";
import type { RotaryOptions } from "../../nn/rotary.ts";
import {
  DECODER_KEYS,
  type DecoderConfig,
  positive,
  resolveDecoder,
  resolveLayerTypes,
  size,
  windowsOf,
} from "../decoder_config.ts";
import { MIXTURE_KEYS, type MixtureConfig, resolveMixture } from "../mixture_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface GptOssConfig extends DecoderConfig, MixtureConfig {
  /** Width of each expert. */
  readonly intermediateSize: number;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
  /** Clamping of gates and ups. */
  readonly activation: ClampedSwigluAttrs;
  /** Attention window of each layer. */
  readonly windows: readonly (number | undefined)[];
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...MIXTURE_KEYS,
  num_key_value_heads: size.nullish().default(8),
  head_dim: size.nullish().default(64),
  num_experts_per_tok: size.default(4),
  intermediate_size: size,
  max_position_embeddings: size.default(131072),
  rms_norm_eps: positive.default(1e-5),
  attention_bias: z.boolean().default(true),
  swiglu_alpha: positive.default(1.702),
  swiglu_limit: positive.default(7),
  sliding_window: size.nullish().default(128),
  layer_types: z.array(z.string()).nullish(),
});

/** Default scaling of positions. */
const DEFAULT_ROPE = {
  rope_type: "yarn",
  factor: 32,
  beta_fast: 32,
  beta_slow: 1,
  truncate: false,
  original_max_position_embeddings: 4096,
};

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGptOssConfig(hfConfig: Readonly<Record<string, unknown>>): GptOssConfig {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  const types = ["sliding_attention", "full_attention"] as const;
  const layerTypes = resolveLayerTypes(raw.layer_types, decoder.numLayers, types, (i) => types[i % 2 === 0 ? 0 : 1]);
  const scaled = raw.rope_scaling ?? raw.rope_parameters ?? DEFAULT_ROPE;
  return {
    ...decoder,
    ...resolveMixture(raw, 128),
    intermediateSize: raw.intermediate_size,
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope({ ...raw, rope_scaling: undefined, rope_parameters: scaled }, {
      headDim: decoder.headDim,
      theta: 150000,
    }),
    attentionBias: raw.attention_bias,
    activation: { alpha: raw.swiglu_alpha, limit: raw.swiglu_limit },
    windows: windowsOf(layerTypes, raw.sliding_window),
  };
}
