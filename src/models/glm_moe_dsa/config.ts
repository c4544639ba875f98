/**
 * The `config.json` of GLM's mixtures with sparse attention.
 *
 * @module
 */
import * as z from "zod";
import { UnsupportedError } from "../../errors.ts";
import { DECODER_KEYS, positive, requireImplemented, size } from "../decoder_config.ts";
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
  q_lora_rank: size.default(2048),
  qk_nope_head_dim: size.default(192),
  v_head_dim: size.default(256),
  intermediate_size: size.default(12288),
  moe_intermediate_size: size.default(2048),
  n_routed_experts: size.default(256),
  n_shared_experts: size.default(1),
  num_experts_per_tok: size.default(8),
  routed_scaling_factor: positive.default(2.5),
  first_k_dense_replace: z.int().nonnegative().default(3),
  mlp_bias: z.boolean().default(false),
  index_topk: size.default(2048),
  index_head_dim: size.default(128),
  index_n_heads: size.default(32),
  indexer_types: z.array(z.string()).nullish(),
  index_topk_pattern: z.union([z.string(), z.array(z.string())]).nullish(),
  index_topk_freq: z.int().nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGlmMoeDsaConfig(hfConfig: Readonly<Record<string, unknown>>): GlmConfig {
  const raw = parseRawConfig(schema, hfConfig);
  const given = raw.indexer_types ?? raw.index_topk_pattern;
  const isShared = given == null ? (raw.index_topk_freq ?? 1) > 1 : [...given].some((type) => !/^f/i.test(type));
  if (isShared) {
    throw new UnsupportedError(
      "Cannot use indexer_types 'shared': layers that see the keys of the one before are not implemented, only 'full' is",
    );
  }
  requireImplemented({ mlp_bias: [raw.mlp_bias, false] });
  const { attention, ...latent } = resolveLatent(raw, { interleaved: true, mlpBias: false });
  const indexer = { numHeads: raw.index_n_heads, headDim: raw.index_head_dim, topK: raw.index_topk };
  return resolveGlm(raw, { ...latent, attention: { ...attention, indexer } }, raw.first_k_dense_replace);
}
