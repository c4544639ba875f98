/**
 * Qwen3-Next's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import { DECODER_KEYS, size } from "../decoder_config.ts";
import { HYBRID_KEYS, type HybridConfig, resolveHybrid } from "../hybrid.ts";
import { MIXTURE_KEYS, type MixtureConfig, resolveMixture, SPARSE_KEYS, sparseLayers } from "../mixture_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Qwen3NextConfig extends HybridConfig, MixtureConfig {
  /** Width of layers without a mixture. */
  readonly intermediateSize: number;
  /** Width of each expert. */
  readonly moeIntermediateSize: number;
  /** Width of the expert that all tokens go to. */
  readonly sharedIntermediateSize: number;
  /** For each layer, true if it has a mixture. */
  readonly sparse: readonly boolean[];
  /** True if the weights of a token are divided by their sum. */
  readonly normalize: boolean;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...HYBRID_KEYS,
  ...MIXTURE_KEYS,
  ...SPARSE_KEYS,
  norm_topk_prob: z.boolean().default(true),
  intermediate_size: size.default(5632),
  num_key_value_heads: size.nullish().default(2),
  num_experts_per_tok: size.default(10),
  moe_intermediate_size: size.default(512),
  shared_expert_intermediate_size: size.default(512),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveQwen3NextConfig(hfConfig: Readonly<Record<string, unknown>>): Qwen3NextConfig {
  const raw = parseRawConfig(schema, hfConfig);
  const hybrid = resolveHybrid(raw, "grouped");
  return {
    ...hybrid,
    ...resolveMixture(raw, 512),
    moeIntermediateSize: raw.moe_intermediate_size,
    sharedIntermediateSize: raw.shared_expert_intermediate_size,
    intermediateSize: raw.intermediate_size,
    sparse: sparseLayers(raw, hybrid.numLayers),
    normalize: raw.norm_topk_prob,
  };
}
