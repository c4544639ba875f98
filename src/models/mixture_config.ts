/**
 * Configuration keys of mixtures of experts, and their resolution.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError } from "../errors.ts";
import { size } from "./decoder_config.ts";

/** Balancing of a model's routers. */
export interface RouterBalance {
  /** Experts of each token. */
  readonly topK: number;
  /** Factor of the balancing loss. */
  readonly coefficient: number;
}

/** Resolved configuration that all mixtures share. */
export interface MixtureConfig {
  readonly numExperts: number;
  /** Experts of each token. */
  readonly topK: number;
  /** True if the model returns the balancing loss, for which mixtures return their logits. */
  readonly outputRouterLogits: boolean;
  readonly balance: RouterBalance | undefined;
}

/** The most by which hidden states are moved at random. */
export const noise: z.ZodNumber = z.number().nonnegative();

/** Keys of nearly all mixtures, to be spread into a schema, which may state them otherwise. */
export const MIXTURE_KEYS: {
  readonly num_experts_per_tok: z.ZodDefault<z.ZodInt>;
  readonly num_local_experts: z.ZodOptional<z.ZodNullable<z.ZodInt>>;
  readonly num_experts: z.ZodOptional<z.ZodNullable<z.ZodInt>>;
  readonly output_router_logits: z.ZodDefault<z.ZodBoolean>;
  readonly router_aux_loss_coef: z.ZodDefault<z.ZodNumber>;
} = {
  num_experts_per_tok: size.default(2),
  num_local_experts: size.nullish(),
  num_experts: size.nullish(),
  output_router_logits: z.boolean().default(false),
  router_aux_loss_coef: z.number().default(0.001),
};

/** Keys of mixtures beside which a model may have layers without one. */
export const SPARSE_KEYS: {
  readonly decoder_sparse_step: z.ZodDefault<z.ZodInt>;
  readonly mlp_only_layers: z.ZodOptional<z.ZodNullable<z.ZodArray<z.ZodInt>>>;
  readonly norm_topk_prob: z.ZodDefault<z.ZodBoolean>;
} = {
  decoder_sparse_step: size.default(1),
  mlp_only_layers: z.array(z.int()).nullish(),
  norm_topk_prob: z.boolean().default(false),
};

/** For each layer, true if it has a mixture: every n-th layer has, except those that are named. */
export function sparseLayers(
  raw: { readonly decoder_sparse_step: number; readonly mlp_only_layers?: readonly number[] | null | undefined },
  numLayers: number,
): readonly boolean[] {
  const dense = new Set(raw.mlp_only_layers);
  return Array.from({ length: numLayers }, (_, i) => (i + 1) % raw.decoder_sparse_step === 0 && !dense.has(i));
}

/** Keys that were checked by a schema of {@link MIXTURE_KEYS}. */
interface RawMixture {
  readonly num_experts_per_tok: number;
  readonly num_local_experts?: number | null | undefined;
  readonly num_experts?: number | null | undefined;
  readonly output_router_logits: boolean;
  readonly router_aux_loss_coef: number;
}

/**
 * Resolves the common keys.
 *
 * @param numExperts the number of experts where the config has none
 * @throws {ConfigError} if there are two numbers of experts, or a token goes to more than there are
 */
export function resolveMixture(raw: RawMixture, numExperts: number): MixtureConfig {
  const experts = raw.num_local_experts ?? raw.num_experts ?? numExperts;
  if (raw.num_experts != null && raw.num_experts !== experts) {
    const expected = `as many as num_local_experts, ${experts}`;
    throw new ConfigError([{ path: "config.json num_experts", expected, got: String(raw.num_experts) }]);
  }
  const topK = raw.num_experts_per_tok;
  if (topK > experts) {
    const expected = `at most the number of experts, ${experts}`;
    throw new ConfigError([{ path: "config.json num_experts_per_tok", expected, got: String(topK) }]);
  }
  const balance = { topK, coefficient: raw.router_aux_loss_coef };
  const outputRouterLogits = raw.output_router_logits;
  return { numExperts: experts, topK, outputRouterLogits, balance: outputRouterLogits ? balance : undefined };
}
