/**
 * Configuration keys of models with latent attention and mixtures of experts, and their resolution.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError } from "../errors.ts";
import type { Activation } from "../nn/feed_forward.ts";
import type { LatentAttentionOptions } from "../nn/latent_attention.ts";
import type { MixtureOptions } from "../nn/mixture_of_experts.ts";
import { type RotaryOptions, yarnScale } from "../nn/rotary.ts";
import {
  type DecoderConfig,
  positive,
  requireImplemented,
  resolveActivation,
  resolveDecoder,
  size,
} from "./decoder_config.ts";
import { type MixtureConfig, resolveMixture } from "./mixture_config.ts";
import { resolveRope } from "./rope_config.ts";

/** Everything that such a model is made by, but for which layers have a mixture, and how it routes. */
export interface LatentConfig extends DecoderConfig, MixtureConfig {
  /** Width of layers without a mixture. */
  readonly intermediateSize: number;
  /** Width of each expert. */
  readonly moeIntermediateSize: number;
  /** The expert that all tokens go to. */
  readonly shared: NonNullable<MixtureOptions["shared"]>;
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  /** The attention of every layer, its tables left out. */
  readonly attention: Omit<LatentAttentionOptions, "rotary">;
}

/** Keys in addition to the common keys of decoders, to be spread into a schema, which may override them. */
export const LATENT_KEYS: {
  readonly hidden_act: z.ZodDefault<z.ZodString>;
  readonly attention_bias: z.ZodDefault<z.ZodBoolean>;
  readonly rms_norm_eps: z.ZodDefault<z.ZodNumber>;
  readonly q_lora_rank: z.ZodOptional<z.ZodNullable<z.ZodInt>>;
  readonly kv_lora_rank: z.ZodDefault<z.ZodInt>;
  readonly qk_nope_head_dim: z.ZodInt;
  readonly qk_rope_head_dim: z.ZodDefault<z.ZodInt>;
  readonly v_head_dim: z.ZodInt;
  readonly intermediate_size: z.ZodInt;
  readonly moe_intermediate_size: z.ZodInt;
  readonly n_routed_experts: z.ZodDefault<z.ZodInt>;
  readonly num_experts: z.ZodOptional<z.ZodNullable<z.ZodInt>>;
  readonly num_local_experts: z.ZodOptional<z.ZodNullable<z.ZodInt>>;
  readonly n_shared_experts: z.ZodInt;
  readonly num_experts_per_tok: z.ZodInt;
  readonly routed_scaling_factor: z.ZodDefault<z.ZodNumber>;
} = {
  hidden_act: z.string().default("silu"),
  attention_bias: z.boolean().default(false),
  rms_norm_eps: positive.default(1e-6),
  q_lora_rank: size.nullish(),
  kv_lora_rank: size.default(512),
  qk_nope_head_dim: size,
  qk_rope_head_dim: size.default(64),
  v_head_dim: size,
  intermediate_size: size,
  moe_intermediate_size: size,
  n_routed_experts: size.default(64),
  num_experts: size.nullish(),
  num_local_experts: size.nullish(),
  n_shared_experts: size,
  num_experts_per_tok: size,
  routed_scaling_factor: positive.default(1),
};

/** Keys that were checked by a schema of {@link LATENT_KEYS}. */
type RawLatent = Parameters<typeof resolveDecoder>[0] & Parameters<typeof resolveRope>[0] & {
  readonly hidden_act: string;
  readonly attention_bias: boolean;
  readonly rms_norm_eps: number;
  readonly q_lora_rank?: number | null | undefined;
  readonly kv_lora_rank: number;
  readonly qk_nope_head_dim: number;
  readonly qk_rope_head_dim: number;
  readonly v_head_dim: number;
  readonly intermediate_size: number;
  readonly moe_intermediate_size: number;
  readonly n_routed_experts: number;
  readonly num_experts?: number | null | undefined;
  readonly num_local_experts?: number | null | undefined;
  readonly n_shared_experts: number;
  readonly num_experts_per_tok: number;
  readonly routed_scaling_factor: number;
};

/** Choices of a family about its attention and feed-forwards. */
export interface LatentFamily {
  /** True if rotary embedding pairs neighbours. */
  readonly interleaved: boolean;
  /** True if feed-forwards have biases. */
  readonly mlpBias: boolean;
}

/**
 * Resolves the common keys.
 *
 * @throws {ConfigError} if sizes do not fit each other
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveLatent(raw: RawLatent, { interleaved, mlpBias }: LatentFamily): LatentConfig {
  const [nopeDim, ropeDim, numHeads] = [raw.qk_nope_head_dim, raw.qk_rope_head_dim, raw.num_attention_heads];
  requireImplemented({
    num_key_value_heads: [raw.num_key_value_heads ?? numHeads, numHeads],
  });
  // Which of these names transformers reads, and which of two it follows, differs from family to family.
  for (const key of ["num_experts", "num_local_experts"] as const) {
    if (raw[key] == null || raw[key] === raw.n_routed_experts) continue;
    const expected = `as many as n_routed_experts, ${raw.n_routed_experts}: give the number by that name`;
    throw new ConfigError([{ path: `config.json ${key}`, expected, got: String(raw[key]) }]);
  }
  const decoder = resolveDecoder({ ...raw, head_dim: nopeDim + ropeDim });
  const rope = resolveRope(raw, { headDim: ropeDim, theta: 10000 });
  const activation = resolveActivation("hidden_act", raw.hidden_act);
  const mixture = { ...raw, num_local_experts: undefined, num_experts: undefined };
  return {
    ...decoder,
    // These models give no loss that balances their routers.
    ...resolveMixture({ ...mixture, output_router_logits: false, router_aux_loss_coef: 0 }, raw.n_routed_experts),
    intermediateSize: raw.intermediate_size,
    moeIntermediateSize: raw.moe_intermediate_size,
    shared: {
      intermediateSize: raw.moe_intermediate_size * raw.n_shared_experts,
      activation,
      gated: false,
      bias: mlpBias,
    },
    activation,
    rmsNormEps: raw.rms_norm_eps,
    rope,
    attention: {
      hiddenSize: decoder.hiddenSize,
      numHeads,
      queryRank: raw.q_lora_rank ?? undefined,
      keyValueRank: raw.kv_lora_rank,
      nopeDim,
      ropeDim,
      valueDim: raw.v_head_dim,
      scale: yarnScale(rope.scaling) ** 2 / Math.sqrt(nopeDim + ropeDim),
      interleaved,
      init: decoder.init,
      bias: raw.attention_bias,
      attentionDropout: decoder.attentionDropout,
    },
  };
}
