/**
 * Phi's `config.json`.
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
  probability,
  resolveActivation,
  resolveDecoder,
  size,
} from "../decoder_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface PhiConfig extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly layerNormEps: number;
  readonly rope: RotaryOptions;
  /** True if queries and keys of each head have a norm. */
  readonly qkLayernorm: boolean;
  /** Probabilities that an element of what attention and feed-forward give, and of the embedding, becomes zero in training. */
  readonly residDropout: number;
  readonly embedDropout: number;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  intermediate_size: size,
  hidden_act: z.string().default("gelu_new"),
  layer_norm_eps: positive.default(1e-5),
  qk_layernorm: z.boolean().default(false),
  embd_pdrop: probability.default(0),
  resid_pdrop: probability.default(0),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolvePhiConfig(hfConfig: Readonly<Record<string, unknown>>): PhiConfig {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    layerNormEps: raw.layer_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000, partial: 0.5 }),
    qkLayernorm: raw.qk_layernorm,
    residDropout: raw.resid_pdrop,
    embedDropout: raw.embd_pdrop,
  };
}
