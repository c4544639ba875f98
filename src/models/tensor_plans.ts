/**
 * Plans of tensor parallelism by family: the style of each layer of a block, by its name below the block, as in transformers'
 * `base_model_tp_plan`. Pieces of plans that families share stand here; names that no block of a model has are left out of its plan.
 *
 * @module
 */
import type { Style } from "../axes/styles.ts";

/** Styles by name below a block. */
export type BlockPlan = Readonly<Record<string, Style>>;

/** A family's plan: its blocks, and what is around them. */
export interface FamilyTensorPlan {
  readonly blocks: BlockPlan;
  /** True if the table of token ids is cut by ids, which it is anyway where the head is tied to it. @default false */
  readonly cutsEmbedding?: boolean;
}

/** Names of the projections of an attention. */
interface AttentionNames {
  /** @default self_attn */
  readonly attention?: string;
  /** @default q_proj, k_proj, v_proj */
  readonly inputs?: readonly string[];
  /** @default o_proj */
  readonly output?: string;
  /** Norms of each head's queries and keys. @default none */
  readonly norms?: readonly string[];
}

/**
 * An attention whose heads are cut over ranks. Where attention applies dropout, all heads are computed on all ranks, by parts of the
 * weights: so masks are the same as on one rank.
 */
export function attentionPlan(
  { attentionDropout = 0 }: { readonly attentionDropout?: number },
  names: AttentionNames = {},
): BlockPlan {
  const { attention = "self_attn", inputs = ["q_proj", "k_proj", "v_proj"], output = "o_proj", norms = [] } = names;
  const isWhole = attentionDropout > 0;
  const summed: readonly (readonly [string, Style])[] = isWhole
    ? []
    : norms.map((norm) => [`${attention}.${norm}`, "replicated_with_grad_allreduce"]);
  return {
    ...styled(attention, inputs, isWhole ? "colwise_gather_output" : "colwise"),
    [`${attention}.${output}`]: isWhole ? "rowwise_split_input" : "rowwise",
    ...Object.fromEntries(summed),
  };
}

/** Members of a module, all of one style. */
export function styled(module: string, names: readonly string[], style: Style): BlockPlan {
  return Object.fromEntries(names.map((name) => [`${module}.${name}`, style]));
}

/** An attention whose norms go over all heads together: all heads are computed on all ranks, by parts of the weights. */
export const GATHERED_ATTENTION_PLAN: BlockPlan = {
  "self_attn.q_proj": "colwise_gather_output",
  "self_attn.k_proj": "colwise_gather_output",
  "self_attn.v_proj": "colwise_gather_output",
  "self_attn.o_proj": "rowwise_split_input",
};

/** Norms of each head's queries and keys, as most families call them. */
export const HEAD_NORMS: AttentionNames = { norms: ["q_norm", "k_norm"] };

/** A gated feed-forward of that name. */
export function gatedPlan(module: string = "mlp"): BlockPlan {
  return { ...styled(module, ["gate_proj", "up_proj"], "colwise"), [`${module}.down_proj`]: "rowwise" };
}

/** Experts, of whose widths each rank has a part. */
export const EXPERTS_PLAN: BlockPlan = {
  "mlp.experts.gate_up_proj": "packed_colwise",
  "mlp.experts.down_proj": "rowwise",
  "mlp.experts": "moe_tp_experts",
};

/** Latent attention, whose queries, keys and values are cut by heads. */
export const LATENT_PLAN: BlockPlan = {
  "self_attn.q_proj": "colwise",
  "self_attn.q_b_proj": "colwise",
  "self_attn.kv_a_proj_with_mqa": "mla_kv_a_proj",
  "self_attn.kv_b_proj": "colwise",
  "self_attn.o_proj": "rowwise",
};

/** Layers of the gated delta rule, which all ranks compute alike, by parts of the weights. */
export const LINEAR_ATTENTION_PLAN: BlockPlan = styled(
  "linear_attn",
  ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "in_proj_qkvz", "in_proj_ba", "out_proj"],
  "colwise_gather_output",
);
