/**
 * Granite's `config.json`.
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
export interface GraniteConfig extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
  readonly mlpBias: boolean;
  /** Factor on the token embedding. */
  readonly embeddingMultiplier: number;
  /** Factor on q·k. */
  readonly attentionMultiplier: number;
  /** Factor on what attention and feed-forward add to the residual. */
  readonly residualMultiplier: number;
  /** Divisor of the logits. */
  readonly logitsScaling: number;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  intermediate_size: size,
  hidden_act: z.string().default("silu"),
  rms_norm_eps: positive.default(1e-6),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  embedding_multiplier: z.number().default(1),
  attention_multiplier: z.number().default(1),
  residual_multiplier: z.number().default(1),
  logits_scaling: positive.default(1),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGraniteConfig(hfConfig: Readonly<Record<string, unknown>>): GraniteConfig {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000 }),
    attentionBias: raw.attention_bias,
    mlpBias: raw.mlp_bias,
    embeddingMultiplier: raw.embedding_multiplier,
    attentionMultiplier: raw.attention_multiplier,
    residualMultiplier: raw.residual_multiplier,
    logitsScaling: raw.logits_scaling,
  };
}
