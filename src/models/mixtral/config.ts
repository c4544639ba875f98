/**
 * Mixtral's `config.json`.
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
import { MIXTURE_KEYS, type MixtureConfig, noise, resolveMixture } from "../mixture_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface MixtralConfig extends DecoderConfig, MixtureConfig {
  /** Width of each expert. */
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  /** Attention window of all layers. */
  readonly window: number | undefined;
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
  router_jitter_noise: noise.default(0),
  sliding_window: size.nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveMixtralConfig(hfConfig: Readonly<Record<string, unknown>>): MixtralConfig {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  return {
    ...decoder,
    ...resolveMixture(raw, 8),
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 1000000 }),
    jitters: [raw.router_jitter_noise],
    window: raw.sliding_window ?? undefined,
  };
}
