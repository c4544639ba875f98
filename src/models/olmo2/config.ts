/**
 * OLMo 2's `config.json`.
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
export interface Olmo2Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  intermediate_size: size,
  hidden_act: z.string().default("silu"),
  pad_token_id: z.int().nullish().default(1),
  rms_norm_eps: positive.default(1e-5),
  attention_bias: z.boolean().default(false),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveOlmo2Config(hfConfig: Readonly<Record<string, unknown>>): Olmo2Config {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000 }),
    attentionBias: raw.attention_bias,
  };
}
