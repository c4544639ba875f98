/** Families of linear and of latent attention, sharded by a plan: they learn what replicated ones do to the bit. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { PlanCase } from "./plan_ranks.ts";
import { usualFirst } from "../support/share.ts";
import { run, whole, WORLD } from "./trained.ts";

const HYBRID = {
  ...{ head_dim: 8, rms_norm_eps: 0.1, full_attention_interval: 2, linear_conv_kernel_dim: 3 },
  ...{ linear_key_head_dim: 4, linear_value_head_dim: 6, linear_num_key_heads: 1, linear_num_value_heads: 2 },
};
const EXPERTS = {
  num_experts: 4,
  num_experts_per_tok: 2,
  moe_intermediate_size: 8,
  shared_expert_intermediate_size: 8,
};
const LATENT = {
  ...{
    num_key_value_heads: 2,
    q_lora_rank: 6,
    kv_lora_rank: 8,
    qk_nope_head_dim: 5,
    qk_rope_head_dim: 4,
    v_head_dim: 6,
  },
  ...{ n_routed_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 8, first_k_dense_replace: 1 },
};
const FAMILIES: Readonly<Record<string, PlanCase["config"]>> = {
  qwen3_5_text: HYBRID,
  qwen3_5_moe_text: { ...HYBRID, ...EXPERTS },
  qwen3_next: { ...HYBRID, ...EXPERTS, mlp_only_layers: [1] },
  deepseek_v2: LATENT,
  glm4_moe_lite: LATENT,
  glm_moe_dsa: { ...LATENT, index_topk: 4, index_head_dim: 6, index_n_heads: 3, index_topk_pattern: "FS" },
};
const manual = {
  mode: "manual",
  modules: { "model.layers.*": ["free_full_weight"], "model.layers.*.mlp": ["free_full_weight"] },
} as const;

describe("shardModel() of linear and latent attention", () => {
  for (const [model, config] of usualFirst(Object.entries(FAMILIES), (place) => place === 1 || place === 5)) {
    it(`${model} learns what DDP learns, tied and untied, by blocks and with their feed-forwards apart`, async () => {
      for (const tied of [false, true]) {
        const data = { config: { ...config, model_type: model }, tied };
        const [reference] = await run(data);
        for (const fsdpPlan of ["auto", manual] as const) {
          const reports = await run({ ...data, fsdpPlan });
          for (const report of reports) {
            assert.deepEqual(report.losses, reference?.losses);
            assert.deepEqual(report.norms, reference?.norms);
            assert.deepEqual(report.predicted, report.measured);
          }
          assert.deepEqual(whole(reports, WORLD), reference?.weights);
        }
      }
    });
  }
});
