/**
 * llama.cpp's names of the tensors that several families have, and the parts of a plan that they share.
 *
 * @module
 */
import { uint32 } from "../../checkpoint/gguf/format.ts";
import type { PlannedTensor } from "../../checkpoint/gguf/plan.ts";
import type { PortableMath } from "../../device/device.ts";
import type { Keys, RopeParts } from "./metadata.ts";
import type { FamilyNames } from "./names.ts";

/** A parsed `config.json`. */
export type HfConfig = Readonly<Record<string, unknown>>;

/** The plan of a family's model, by its config. */
export type FamilyPlan = (hfConfig: HfConfig, math: PortableMath) => FamilyParts;

/** The parts of a plan that a family gives for its model. */
export interface FamilyParts {
  readonly architecture: string;
  readonly keys: Keys;
  readonly names: FamilyNames;
  readonly tensors?: readonly PlannedTensor[];
  readonly notes?: readonly string[];
}

/** Embedding, final norm and head. */
const OUTER = {
  "model.embed_tokens": "token_embd",
  "model.norm": "output_norm",
  lm_head: "output",
} as const;

/** An attention and the norms before it and before the feed-forward. */
export const ATTENTION = {
  input_layernorm: "attn_norm",
  "self_attn.q_proj": "attn_q",
  "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v",
  "self_attn.o_proj": "attn_output",
  post_attention_layernorm: "ffn_norm",
} as const;

/** Norms of queries and keys. */
export const QK_NORMS = { "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm" } as const;

/** A gated feed-forward. */
export const FEED_FORWARD = {
  "mlp.gate_proj": "ffn_gate",
  "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down",
} as const;

/** A mixture of experts. */
export const EXPERTS = { "mlp.gate": "ffn_gate_inp", "mlp.experts.down_proj": "ffn_down_exps" } as const;

/** The expert that all tokens go through, with its gate. */
export const SHARED_EXPERT = {
  "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
  "mlp.shared_expert.up_proj": "ffn_up_shexp",
  "mlp.shared_expert.down_proj": "ffn_down_shexp",
  "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
} as const;

/** Tables as one; of a key that several have, the last one's value. */
export function joined<Value>(tables: readonly Readonly<Record<string, Value>>[]): Readonly<Record<string, Value>> {
  return Object.fromEntries(tables.flatMap((table) => Object.entries(table)));
}

/** The names of a family whose files are laid out as Llama's. */
export const layersNamed = (...tables: readonly Readonly<Record<string, string>>[]): FamilyNames => ({
  layers: "model.layers",
  outer: OUTER,
  inner: joined(tables),
});

/** Llama's architecture turns neighbouring elements of a head, where transformers turns halves. */
export function llamaNames(
  { numHeads, numKvHeads }: { readonly numHeads: number; readonly numKvHeads: number },
  ...tables: readonly Readonly<Record<string, string>>[]
): FamilyNames {
  return { ...layersNamed(ATTENTION, ...tables), heads: { attn_q: numHeads, attn_k: numKvHeads } };
}

/** Numbers of experts. */
export const expertKeys = ({ numExperts, topK }: { readonly numExperts: number; readonly topK: number }): Keys => ({
  expert_count: uint32(numExperts),
  expert_used_count: uint32(topK),
});

/** A rotation's parts, with other keys before its own. */
export const withRope = ({ keys, ...rest }: RopeParts, ...others: readonly Keys[]): RopeParts => ({
  ...rest,
  keys: joined([...others, keys]),
});
