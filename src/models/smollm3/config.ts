/**
 * SmolLM3's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError } from "../../errors.ts";
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
export interface SmolLm3Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
  readonly mlpBias: boolean;
  /** For each layer, true if its attention turns queries and keys by their positions. */
  readonly isRotary: readonly boolean[];
  /** Attention window of each layer. */
  readonly windows: readonly (number | undefined)[];
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  num_key_value_heads: size.nullish().default(4),
  intermediate_size: size,
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(32768),
  pad_token_id: z.int().nullish().default(128004),
  rms_norm_eps: positive.default(1e-6),
  attention_bias: z.boolean().default(false),
  mlp_bias: z.boolean().default(false),
  tie_word_embeddings: z.boolean().default(true),
  use_sliding_window: z.boolean().default(false),
  sliding_window: size.nullish(),
  no_rope_layers: z.array(z.union([z.literal(0), z.literal(1), z.boolean()])).nullish(),
  no_rope_layer_interval: size.default(4),
  layer_types: z.array(z.string()).nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveSmolLm3Config(hfConfig: Readonly<Record<string, unknown>>): SmolLm3Config {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  const isRotary = resolveRotaryLayers(raw.no_rope_layers, decoder.numLayers, raw.no_rope_layer_interval);
  const slides = raw.use_sliding_window && raw.sliding_window != null;
  const types = ["full_attention", "sliding_attention"] as const;
  const layerTypes = resolveLayerTypes(
    raw.layer_types,
    decoder.numLayers,
    types,
    (i) => types[slides && isRotary[i] === false ? 1 : 0],
  );
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 2000000 }),
    attentionBias: raw.attention_bias,
    mlpBias: raw.mlp_bias,
    isRotary,
    windows: windowsOf(layerTypes, raw.sliding_window),
  };
}

/**
 * The layers that turn queries and keys.
 *
 * @param given `no_rope_layers` of the config, which despite its name has 1 for the layers that do
 */
function resolveRotaryLayers(
  given: readonly (0 | 1 | boolean)[] | null | undefined,
  numLayers: number,
  interval: number,
): readonly boolean[] {
  if (given == null) return Array.from({ length: numLayers }, (_, i) => (i + 1) % interval !== 0);
  if (given.length >= numLayers) return given.slice(0, numLayers).map((value) => value === 1 || value === true);
  const expected = `at least one for each of ${numLayers} layers`;
  throw new ConfigError([{ path: "config.json no_rope_layers", expected, got: String(given.length) }]);
}
