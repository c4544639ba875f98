/**
 * GGUF plans of the families with mixtures of experts, as llama.cpp's `convert_hf_to_gguf.py` writes them.
 *
 * @module
 */
import { uint32 } from "../../checkpoint/gguf/format.ts";
import { resolveMixtralConfig } from "../mixtral/config.ts";
import { resolveQwen2MoeConfig } from "../qwen2_moe/config.ts";
import { resolveQwen3MoeConfig } from "../qwen3_moe/config.ts";
import {
  ATTENTION,
  expertKeys,
  EXPERTS,
  type FamilyPlan,
  layersNamed,
  llamaNames,
  QK_NORMS,
  SHARED_EXPERT,
  withRope,
} from "./layer_names.ts";
import { requireComputed, rmsKeys, ropeParts, sizeKeys, windowParts } from "./metadata.ts";

/** Families with mixtures of experts, by `model_type`. */
export const MIXTURE_FAMILIES: Readonly<Record<string, FamilyPlan>> = {
  mixtral: (hfConfig, math) => {
    const config = resolveMixtralConfig(hfConfig);
    requireComputed("llama", { hidden_act: [config.activation, "silu"] });
    const [window, rope] = [windowParts(config, [config.window]), ropeParts(config.rope, math)];
    return {
      architecture: "llama",
      names: llamaNames(config, EXPERTS),
      ...withRope(rope, sizeKeys(config), rmsKeys(config), expertKeys(config), window.keys),
      notes: [...window.notes, ...rope.notes],
    };
  },
  qwen3_moe: (hfConfig, math) => {
    const config = resolveQwen3MoeConfig(hfConfig);
    requireComputed("qwen3moe", {
      hidden_act: [config.activation, "silu"],
      attention_bias: [config.attentionBias, false],
      norm_topk_prob: [config.normalize, true],
      "layers without experts (decoder_sparse_step, mlp_only_layers)": [config.sparse.includes(false), false],
    });
    const [window, rope] = [windowParts(config, [config.window]), ropeParts(config.rope, math)];
    const keys = { expert_feed_forward_length: uint32(config.moeIntermediateSize) };
    return {
      architecture: "qwen3moe",
      names: layersNamed(ATTENTION, QK_NORMS, EXPERTS),
      ...withRope(rope, sizeKeys(config), rmsKeys(config), expertKeys(config), keys, window.keys),
      notes: [...window.notes, ...rope.notes],
    };
  },
  qwen2_moe: (hfConfig, math) => {
    const config = resolveQwen2MoeConfig(hfConfig);
    requireComputed("qwen2moe", {
      hidden_act: [config.activation, "silu"],
      norm_topk_prob: [config.normalize, false],
      "layers without experts (decoder_sparse_step, mlp_only_layers)": [config.sparse.includes(false), false],
    });
    const [window, rope] = [windowParts(config, config.windows), ropeParts(config.rope, math)];
    const keys = {
      expert_feed_forward_length: uint32(config.moeIntermediateSize),
      expert_shared_feed_forward_length: uint32(config.sharedIntermediateSize),
    };
    return {
      architecture: "qwen2moe",
      names: layersNamed(ATTENTION, EXPERTS, SHARED_EXPERT),
      ...withRope(rope, sizeKeys(config), rmsKeys(config), expertKeys(config), keys, window.keys),
      notes: [...window.notes, ...rope.notes],
    };
  },
};
