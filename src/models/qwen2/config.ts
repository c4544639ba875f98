/**
 * Qwen2's `config.json`, which Qwen2.5 has too.
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
import { parseRawConfig } from "../raw_config.ts";
import { resolveRope, ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Qwen2Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  /** Attention window of each layer. */
  readonly windows: readonly (number | undefined)[];
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  num_key_value_heads: size.nullish().default(32),
  intermediate_size: size,
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(32768),
  rms_norm_eps: positive.default(1e-6),
  use_sliding_window: z.boolean().default(false),
  sliding_window: size.nullish().default(4096),
  max_window_layers: z.int().default(28),
  layer_types: z.array(z.string()).nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveQwen2Config(hfConfig: Readonly<Record<string, unknown>>): Qwen2Config {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  const window = raw.use_sliding_window ? raw.sliding_window : undefined;
  const types = ["full_attention", "sliding_attention"] as const;
  const layerTypes = resolveLayerTypes(
    raw.layer_types,
    decoder.numLayers,
    types,
    (i) => types[window != null && i >= raw.max_window_layers ? 1 : 0],
  );
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000 }),
    windows: windowsOf(layerTypes, window),
  };
}
