/**
 * The GLM families with latent attention: the keys of their `config.json` that other latent attentions lack, and their
 * blocks.
 *
 * @module
 */
import * as z from "zod";
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import { ConfigError } from "../errors.ts";
import { GatedFeedForward } from "../nn/feed_forward.ts";
import { type KeySelection, LatentAttention, type LatentAttentionOptions } from "../nn/latent_attention.ts";
import { MixtureOfExperts, type MixtureOptions } from "../nn/mixture_of_experts.ts";
import { RMSNorm } from "../nn/norm.ts";
import { PreNormBlock } from "../nn/pre_norm_block.ts";
import { RotaryTables } from "../nn/rotary.ts";
import { blocksOf, type DecoderParts } from "./decoder.ts";
import { size } from "./decoder_config.ts";
import type { LatentConfig } from "./latent_config.ts";
import { EXPERTS_PLAN, gatedPlan, LATENT_PLAN } from "./tensor_plans.ts";

/** The resolved configuration of a GLM model with latent attention. */
export interface GlmConfig extends LatentConfig {
  /** For each layer, whether its feed-forward is a mixture of experts. */
  readonly sparse: readonly boolean[];
  /** The source of each layer's keys. @default every query attends to all keys up to its own position */
  readonly keySelections?: readonly KeySelection[];
  readonly router: MixtureOptions["router"];
}

/** Keys to be spread into a schema. */
export const GLM_KEYS: {
  readonly n_group: z.ZodDefault<z.ZodInt>;
  readonly topk_group: z.ZodDefault<z.ZodInt>;
  readonly norm_topk_prob: z.ZodDefault<z.ZodBoolean>;
  readonly mlp_layer_types: z.ZodOptional<z.ZodNullable<z.ZodArray<z.ZodEnum<{ dense: "dense"; sparse: "sparse" }>>>>;
} = {
  n_group: size.default(1),
  topk_group: size.default(1),
  norm_topk_prob: z.boolean().default(true),
  mlp_layer_types: z.array(z.enum(["dense", "sparse"])).nullish(),
};

/** Keys that were checked by a schema of {@link GLM_KEYS}. */
interface RawGlm {
  readonly n_group: number;
  readonly topk_group: number;
  readonly norm_topk_prob: boolean;
  readonly routed_scaling_factor: number;
  readonly mlp_layer_types?: readonly ("dense" | "sparse")[] | null | undefined;
}

/**
 * Resolves the common keys.
 *
 * @param firstSparse the first layer with a mixture, where the config has no types of layers
 * @throws {ConfigError} if there is not a type for each layer
 */
export function resolveGlm(raw: RawGlm, latent: LatentConfig, firstSparse: number): GlmConfig {
  const { numLayers, topK } = latent;
  const sparse = raw.mlp_layer_types?.map((type) => type === "sparse") ??
    Array.from({ length: numLayers }, (_, i) => i >= firstSparse);
  if (sparse.length !== numLayers) {
    const expected = `one for each of ${numLayers} layers`;
    throw new ConfigError([{ path: "config.json mlp_layer_types", expected, got: String(sparse.length) }]);
  }
  const groups = { groups: raw.n_group, topGroups: raw.topk_group, groupBest: 2 } as const;
  const weights = { normalize: raw.norm_topk_prob, scale: raw.routed_scaling_factor };
  const router = { topK, groups, ...weights, scoring: "sigmoid", correctionBias: true, float32Logits: true } as const;
  return { ...latent, sparse, router };
}

/** The blocks, and the norm behind them: latent attention, and mixtures whose experts are chosen by sigmoids and a bias. */
export function glmParts(device: Device, config: GlmConfig): Pick<DecoderParts, "layers" | "norm" | "tensorPlan"> {
  const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
  const rotary = new RotaryTables(device, config.rope);
  const attention = (layer: number): LatentAttentionOptions => {
    const keySelection = config.keySelections && at(config.keySelections, layer, "layer");
    return { ...config.attention, rotary, ...keySelection && { keySelection } };
  };
  const names = { sharedExpert: "shared_experts" };
  const mixture = { ...config, intermediateSize: config.moeIntermediateSize, names };
  return {
    layers: blocksOf(config, (i) =>
      new PreNormBlock({
        selfAttn: new LatentAttention(device, attention(i)),
        mlp: config.sparse[i] ? new MixtureOfExperts(device, mixture) : new GatedFeedForward(device, config),
        inputLayernorm: norm(),
        postAttentionLayernorm: norm(),
      })),
    norm: norm(),
    tensorPlan: { blocks: { ...LATENT_PLAN, ...EXPERTS_PLAN, ...gatedPlan("mlp.shared_experts"), ...gatedPlan() } },
  };
}
