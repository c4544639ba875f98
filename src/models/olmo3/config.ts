/**
 * Olmo 3's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import type { Activation } from "../../nn/feed_forward.ts";
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
import { parseRawConfig } from "../raw_config.ts";
import { resolveRotations, ROPE_KEYS, type Rotations } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Olmo3Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rotations: Rotations;
  readonly attentionBias: boolean;
  readonly layerTypes: readonly (keyof Rotations)[];
  /** Attention window of each layer. */
  readonly windows: readonly (number | undefined)[];
}

const THETA = 500000;

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  intermediate_size: size,
  hidden_act: z.string().default("silu"),
  pad_token_id: z.int().nullish().default(1),
  rms_norm_eps: positive.default(1e-5),
  attention_bias: z.boolean().default(false),
  sliding_window: size.nullish().default(4096),
  layer_types: z.array(z.string()).nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveOlmo3Config(hfConfig: Readonly<Record<string, unknown>>): Olmo3Config {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  const types = ["sliding_attention", "full_attention"] as const;
  const layerTypes = resolveLayerTypes(raw.layer_types, decoder.numLayers, types, (i) => types[i % 4 === 3 ? 1 : 0]);
  const theta = { full_attention: raw.rope_theta ?? THETA, sliding_attention: THETA };
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rotations: resolveRotations(raw, decoder.headDim, theta, ["full_attention"]),
    attentionBias: raw.attention_bias,
    layerTypes,
    windows: windowsOf(layerTypes, raw.sliding_window),
  };
}
