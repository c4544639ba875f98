/** Configurations of mixtures of experts: what is refused, by its name, and what follows from what is not there. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { ConfigError, UnsupportedError } from "../../src/errors.ts";
import { resolveDeepseekV2Config } from "../../src/models/deepseek_v2/config.ts";
import { resolveGlm4MoeLiteConfig } from "../../src/models/glm4_moe_lite/config.ts";
import { resolveGlmMoeDsaConfig } from "../../src/models/glm_moe_dsa/config.ts";
import { resolveGptOssConfig } from "../../src/models/gpt_oss/config.ts";
import { resolveMixtralConfig } from "../../src/models/mixtral/config.ts";
import { resolvePhimoeConfig } from "../../src/models/phimoe/config.ts";
import { resolveQwen2MoeConfig } from "../../src/models/qwen2_moe/config.ts";
import { resolveQwen3MoeConfig } from "../../src/models/qwen3_moe/config.ts";

const SIZES = {
  ...{ vocab_size: 64, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 4, num_attention_heads: 2 },
  ...{ num_key_value_heads: 1, max_position_embeddings: 32 },
};

test("mixtures refuse options that are not implemented, by their names", () => {
  const refused: readonly (readonly [(config: Record<string, unknown>) => unknown, string, unknown])[] = [
    [resolvePhimoeConfig, "num_experts_per_tok", 3],
  ];
  for (const [resolve, key, value] of refused) {
    assert.throws(() => resolve({ ...SIZES, [key]: value }), (error) => {
      return error instanceof UnsupportedError && error.message.startsWith(`Cannot use ${key} ${value}: `);
    });
  }
});

test("mixtures want as many experts as a token goes to, and longrope its two scales", () => {
  assert.throws(() => resolveMixtralConfig({ ...SIZES, num_local_experts: 2, num_experts_per_tok: 3 }), (error) => {
    return error instanceof ConfigError &&
      /num_experts_per_tok.*at most the number of experts, 2.*3/.test(error.message);
  });
  const rope = { rope_type: "longrope", short_factor: [1, 1, 1, 1], long_factor: [1, 1, 1, 1], short_mscale: 1 };
  const longrope = { ...SIZES, rope_parameters: rope, original_max_position_embeddings: 16 };
  assert.throws(() => resolvePhimoeConfig(longrope), /rope_parameters.long_mscale/);
  assert.throws(() => resolvePhimoeConfig({ ...SIZES, rope_parameters: { rope_type: "yarn" } }), UnsupportedError);
});

test("the number of experts has two names, and defaults are each family's", () => {
  assert.equal(resolveQwen3MoeConfig({ ...SIZES, num_experts: 16 }).numExperts, 16);
  assert.equal(resolveQwen3MoeConfig({ ...SIZES, num_local_experts: 12 }).numExperts, 12);
  const two = { ...SIZES, num_experts: 16, num_local_experts: 12 };
  assert.throws(
    () => resolveQwen3MoeConfig(two),
    /config\.json num_experts: expected as many as num_local_experts, 12, got 16/,
  );
  assert.deepEqual([resolveQwen3MoeConfig(SIZES).numExperts, resolveQwen3MoeConfig(SIZES).topK], [128, 8]);
  assert.deepEqual([resolveQwen2MoeConfig(SIZES).numExperts, resolveQwen2MoeConfig(SIZES).topK], [60, 4]);
  assert.deepEqual([resolveMixtralConfig(SIZES).numExperts, resolveMixtralConfig(SIZES).topK], [8, 2]);
  assert.deepEqual([resolvePhimoeConfig(SIZES).numExperts, resolvePhimoeConfig(SIZES).jitter], [16, 0.01]);
  const { rope, windows, headDim, activation } = resolveGptOssConfig(SIZES);
  assert.deepEqual([rope.scaling.type, rope.theta, headDim], ["yarn", 150000, 64]);
  assert.deepEqual(windows, [128, undefined, 128, undefined]);
  assert.deepEqual(activation, { alpha: 1.702, limit: 7 });
});

test("layers without a mixture are those between the steps and those that are named; windows alternate by layer", () => {
  const { sparse } = resolveQwen3MoeConfig({ ...SIZES, decoder_sparse_step: 2, mlp_only_layers: [3] });
  assert.deepEqual(sparse, [false, true, false, false]);
  const slides = { use_sliding_window: true, sliding_window: 8, max_window_layers: 2 };
  assert.deepEqual(resolveQwen2MoeConfig({ ...SIZES, ...slides }).windows, [8, undefined, undefined, undefined]);
  assert.equal(resolveMixtralConfig({ ...SIZES, output_router_logits: false }).balance, undefined);
  const asked = { ...SIZES, output_router_logits: true, router_aux_loss_coef: 0.5 };
  assert.deepEqual(resolveMixtralConfig(asked).balance, { topK: 2, coefficient: 0.5 });
});

test("families of latent attention want one number of experts, whichever names it has", () => {
  for (const resolve of [resolveDeepseekV2Config, resolveGlm4MoeLiteConfig, resolveGlmMoeDsaConfig]) {
    const config = { ...SIZES, num_key_value_heads: 2, n_routed_experts: 8, num_experts_per_tok: 2 };
    for (const key of ["num_experts", "num_local_experts"]) {
      assert.equal(resolve({ ...config, [key]: 8 }).numExperts, 8);
      assert.throws(() => resolve({ ...config, [key]: 4 }), (error) => {
        return error instanceof ConfigError && error.message.includes(key) &&
          /as n_routed_experts, 8.*4/.test(error.message);
      });
    }
  }
});
