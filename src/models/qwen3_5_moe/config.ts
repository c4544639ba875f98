/**
 * The `config.json` of the text models of Qwen3.5's mixtures.
 *
 * @module
 */
import * as z from "zod";
import { DECODER_KEYS, size } from "../decoder_config.ts";
import { HYBRID_KEYS, type HybridConfig, resolveHybrid } from "../hybrid.ts";
import { MIXTURE_KEYS, type MixtureConfig, resolveMixture } from "../mixture_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Qwen35MoeConfig extends HybridConfig, MixtureConfig {
  /** Width of each expert. */
  readonly moeIntermediateSize: number;
  /** Width of the expert that all tokens go to. */
  readonly sharedIntermediateSize: number;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...HYBRID_KEYS,
  ...MIXTURE_KEYS,
  num_key_value_heads: size.nullish().default(2),
  num_experts_per_tok: size.default(8),
  moe_intermediate_size: size.default(512),
  shared_expert_intermediate_size: size.default(512),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveQwen35MoeConfig(hfConfig: Readonly<Record<string, unknown>>): Qwen35MoeConfig {
  const raw = parseRawConfig(schema, hfConfig);
  return {
    ...resolveHybrid(raw),
    ...resolveMixture(raw, 256),
    moeIntermediateSize: raw.moe_intermediate_size,
    sharedIntermediateSize: raw.shared_expert_intermediate_size,
  };
}
