/**
 * GLM-4-MoE-Lite's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import { DECODER_KEYS, positive, size } from "../decoder_config.ts";
import { GLM_KEYS, type GlmConfig, resolveGlm } from "../glm.ts";
import { LATENT_KEYS, resolveLatent } from "../latent_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { ROPE_KEYS } from "../rope_config.ts";

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...LATENT_KEYS,
  ...GLM_KEYS,
  max_position_embeddings: size.default(202752),
  rms_norm_eps: positive.default(1e-5),
  q_lora_rank: size.nullish().default(768),
  qk_nope_head_dim: size.default(192),
  v_head_dim: size.default(256),
  intermediate_size: size.default(10240),
  moe_intermediate_size: size.default(1536),
  n_shared_experts: size.default(1),
  num_experts_per_tok: size.default(4),
  routed_scaling_factor: positive.default(1.8),
  rope_interleave: z.boolean().default(true),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGlm4MoeLiteConfig(hfConfig: Readonly<Record<string, unknown>>): GlmConfig {
  const raw = parseRawConfig(schema, hfConfig);
  return resolveGlm(raw, resolveLatent(raw, { interleaved: raw.rope_interleave, mlpBias: false }), 1);
}
