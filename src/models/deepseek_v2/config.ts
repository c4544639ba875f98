/**
 * DeepSeek-V2's `config.json`.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError } from "../../errors.ts";
import type { RouterOptions } from "../../nn/router.ts";
import { DECODER_KEYS, size } from "../decoder_config.ts";
import { LATENT_KEYS, type LatentConfig, resolveLatent } from "../latent_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface DeepseekV2Config extends LatentConfig {
  /** Layers before the first that has a mixture. */
  readonly firstSparse: number;
  readonly mlpBias: boolean;
  /** Groups of experts. Only the experts of some groups are candidates. */
  readonly groups: RouterOptions["groups"];
  /** Factor of the experts' weights. */
  readonly routedScale: number;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...LATENT_KEYS,
  q_lora_rank: size.nullish().default(1536),
  qk_nope_head_dim: size.default(128),
  v_head_dim: size.default(128),
  intermediate_size: size.default(11008),
  moe_intermediate_size: size.default(1407),
  n_shared_experts: size.default(2),
  mlp_bias: z.boolean().default(false),
  first_k_dense_replace: z.int().nonnegative().default(0),
  num_experts_per_tok: size,
  n_group: size.nullish(),
  topk_group: size.nullish(),
  topk_method: z.enum(["greedy", "group_limited_greedy"]).nullish().default("greedy"),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveDeepseekV2Config(hfConfig: Readonly<Record<string, unknown>>): DeepseekV2Config {
  const raw = parseRawConfig(schema, hfConfig);
  const groupsOf = (): RouterOptions["groups"] => {
    if (raw.topk_method !== "group_limited_greedy") return undefined;
    if (raw.n_group != null && raw.topk_group != null) {
      return { groups: raw.n_group, topGroups: raw.topk_group, groupBest: 1 };
    }
    const expected = "numbers, for topk_method group_limited_greedy";
    const got = `${raw.n_group} and ${raw.topk_group}`;
    throw new ConfigError([{ path: "config.json n_group and topk_group", expected, got }]);
  };
  return {
    ...resolveLatent(raw, { interleaved: true, mlpBias: raw.mlp_bias }),
    firstSparse: raw.first_k_dense_replace,
    mlpBias: raw.mlp_bias,
    groups: groupsOf(),
    routedScale: raw.routed_scaling_factor,
  };
}
