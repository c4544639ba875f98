/**
 * GLM-4-MoE-Lite's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError } from "../../errors.ts";
import type { RouterOptions } from "../../nn/router.ts";
import { DECODER_KEYS, positive, size } from "../decoder_config.ts";
import { LATENT_KEYS, type LatentConfig, resolveLatent } from "../latent_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { ROPE_KEYS } from "../rope_config.ts";

/** Everything that decides what the model computes. */
export interface Glm4MoeLiteConfig extends LatentConfig {
  /** Which layers have a mixture. */
  readonly sparse: readonly boolean[];
  /** Groups of experts of which only some are candidates. */
  readonly groups: NonNullable<RouterOptions["groups"]>;
  /** Whether the weights of a token are divided by their sum. */
  readonly normalize: boolean;
  /** What the weights of experts are multiplied by. */
  readonly routedScale: number;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...LATENT_KEYS,
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
  n_group: size.default(1),
  topk_group: size.default(1),
  norm_topk_prob: z.boolean().default(true),
  rope_interleave: z.boolean().default(true),
  mlp_layer_types: z.array(z.enum(["dense", "sparse"])).nullish(),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGlm4MoeLiteConfig(hfConfig: Readonly<Record<string, unknown>>): Glm4MoeLiteConfig {
  const raw = parseRawConfig(schema, hfConfig);
  const latent = resolveLatent(raw, { interleaved: raw.rope_interleave, mlpBias: false });
  const types = raw.mlp_layer_types ?? Array.from({ length: latent.numLayers }, (_, i) => i === 0 ? "dense" : "sparse");
  if (types.length !== latent.numLayers) {
    const expected = `one for each of ${latent.numLayers} layers`;
    throw new ConfigError([{ path: "config.json mlp_layer_types", expected, got: String(types.length) }]);
  }
  return {
    ...latent,
    sparse: types.map((type) => type === "sparse"),
    groups: { groups: raw.n_group, topGroups: raw.topk_group, groupBest: 2 },
    normalize: raw.norm_topk_prob,
    routedScale: raw.routed_scaling_factor,
  };
}
