/**
 * Phi-3's `config.json`.
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
export interface Phi3Config extends DecoderConfig {
  readonly intermediateSize: number;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  /** Attention window of all layers. */
  readonly window: number | undefined;
  /** Probability that an element of what attention and feed-forward give becomes zero in training. `embd_pdrop` does nothing, as there. */
  readonly residDropout: number;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  intermediate_size: size,
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(4096),
  original_max_position_embeddings: size.default(4096),
  pad_token_id: z.int().nullish().default(32000),
  rms_norm_eps: positive.default(1e-5),
  resid_pdrop: probability.default(0),
  sliding_window: size.nullish(),
});

/** Names that the family's one scaling had before. */
const FORMER_SCALINGS: readonly unknown[] = ["su", "yarn"];

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolvePhi3Config(hfConfig: Readonly<Record<string, unknown>>): Phi3Config {
  const raw = parseRawConfig(schema, hfConfig);
  const decoder = resolveDecoder(raw);
  const given = raw.rope_scaling ?? raw.rope_parameters ?? {};
  const isFormer = FORMER_SCALINGS.includes(given.rope_type ?? given.type);
  const rope = isFormer ? { ...given, rope_type: "longrope" } : given;
  return {
    ...decoder,
    intermediateSize: raw.intermediate_size,
    activation: resolveActivation("hidden_act", raw.hidden_act),
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope({ ...raw, rope_scaling: undefined, rope_parameters: rope }, {
      headDim: decoder.headDim,
      theta: 10000,
      partial: 1,
      types: ["default", "longrope"],
    }),
    residDropout: raw.resid_pdrop,
    window: raw.sliding_window ?? undefined,
  };
}
