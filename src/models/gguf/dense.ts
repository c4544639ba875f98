/**
 * GGUF plans of the families without experts, as llama.cpp's `convert_hf_to_gguf.py` writes them.
 *
 * @module
 */
import { float32, uint32 } from "../../checkpoint/gguf/format.ts";
import { resolveGpt2Config } from "../gpt2/config.ts";
import { resolveGraniteConfig } from "../granite/config.ts";
import { resolveLlamaConfig } from "../llama/config.ts";
import { resolveMistralConfig } from "../mistral/config.ts";
import { resolvePhiConfig } from "../phi/config.ts";
import { resolvePhi3Config } from "../phi3/config.ts";
import { resolveQwen2Config } from "../qwen2/config.ts";
import { resolveQwen3Config } from "../qwen3/config.ts";
import { resolveSmolLm3Config } from "../smollm3/config.ts";
import {
  ATTENTION,
  type FamilyPlan,
  FEED_FORWARD,
  layersNamed,
  llamaNames,
  QK_NORMS,
  withRope,
} from "./layer_names.ts";
import { requireComputed, rmsKeys, ropeParts, sizeKeys, windowParts } from "./metadata.ts";

/** Families without experts, by `model_type`. */
export const DENSE_FAMILIES: Readonly<Record<string, FamilyPlan>> = {
  llama: (hfConfig, math) => {
    const config = resolveLlamaConfig(hfConfig);
    requireComputed("llama", { hidden_act: [config.activation, "silu"] });
    return {
      architecture: "llama",
      names: llamaNames(config, FEED_FORWARD),
      ...withRope(ropeParts(config.rope, math), sizeKeys(config), rmsKeys(config)),
    };
  },
  mistral: (hfConfig, math) => {
    const config = resolveMistralConfig(hfConfig);
    requireComputed("llama", { hidden_act: [config.activation, "silu"] });
    const [window, rope] = [windowParts(config, [config.window]), ropeParts(config.rope, math)];
    return {
      architecture: "llama",
      names: llamaNames(config, FEED_FORWARD),
      ...withRope(rope, sizeKeys(config), rmsKeys(config), window.keys),
      notes: [...window.notes, ...rope.notes],
    };
  },
  qwen3: (hfConfig, math) => {
    const config = resolveQwen3Config(hfConfig);
    requireComputed("qwen3", {
      hidden_act: [config.activation, "silu"],
      attention_bias: [config.attentionBias, false],
    });
    const [window, rope] = [windowParts(config, config.windows), ropeParts(config.rope, math)];
    return {
      architecture: "qwen3",
      names: layersNamed(ATTENTION, QK_NORMS, FEED_FORWARD),
      ...withRope(rope, sizeKeys(config), rmsKeys(config), window.keys),
      notes: [...window.notes, ...rope.notes],
    };
  },
  qwen2: (hfConfig, math) => {
    const config = resolveQwen2Config(hfConfig);
    requireComputed("qwen2", { hidden_act: [config.activation, "silu"] });
    const [window, rope] = [windowParts(config, config.windows), ropeParts(config.rope, math)];
    return {
      architecture: "qwen2",
      names: layersNamed(ATTENTION, FEED_FORWARD),
      ...withRope(rope, sizeKeys(config), rmsKeys(config), window.keys),
      notes: [...window.notes, ...rope.notes],
    };
  },
  phi3: (hfConfig, math) => {
    const config = resolvePhi3Config(hfConfig);
    requireComputed("phi3", { hidden_act: [config.activation, "silu"] });
    const [window, rope] = [windowParts(config, [config.window]), ropeParts(config.rope, math)];
    // The key without which llama.cpp takes a window by the length of the context; 0 is none.
    const keys = { "attention.sliding_window": uint32(0) };
    return {
      architecture: "phi3",
      names: layersNamed({
        ...ATTENTION,
        "self_attn.qkv_proj": "attn_qkv",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
      }),
      ...withRope(rope, sizeKeys(config), rmsKeys(config), keys, window.keys),
      notes: [...window.notes, ...rope.notes],
    };
  },
  phi: (hfConfig, math) => {
    const config = resolvePhiConfig(hfConfig);
    requireComputed("phi2", {
      hidden_act: [config.activation, "geluTanh"],
      qk_layernorm: [config.qkLayernorm, false],
      tie_word_embeddings: [config.tieWordEmbeddings, false],
    });
    const { outer: { "model.norm": _norm, ...outer }, ...names } = layersNamed({
      input_layernorm: "attn_norm",
      "self_attn.q_proj": "attn_q",
      "self_attn.k_proj": "attn_k",
      "self_attn.v_proj": "attn_v",
      "self_attn.dense": "attn_output",
      "mlp.fc1": "ffn_up",
      "mlp.fc2": "ffn_down",
    });
    const keys = { "attention.layer_norm_epsilon": float32(config.layerNormEps) };
    return {
      architecture: "phi2",
      names: { ...names, outer: { ...outer, "model.final_layernorm": "output_norm" } },
      ...withRope(ropeParts(config.rope, math), sizeKeys(config), keys),
    };
  },
  gpt2: (hfConfig) => {
    const config = resolveGpt2Config(hfConfig);
    const scale = 1 / Math.sqrt(config.headDim);
    requireComputed("gpt2", {
      activation_function: [config.activation, "geluTanh"],
      "other factors on attention scores (scale_attn_weights, scale_attn_by_inverse_layer_idx)": [
        config.scales.some((one) => one !== scale),
        false,
      ],
    });
    return {
      architecture: "gpt2",
      keys: { ...sizeKeys(config), "attention.layer_norm_epsilon": float32(config.layerNormEps) },
      names: {
        layers: "transformer.h",
        outer: {
          "transformer.wte": "token_embd",
          "transformer.wpe": "position_embd",
          "transformer.ln_f": "output_norm",
          lm_head: "output",
        },
        inner: {
          ln_1: "attn_norm",
          "attn.c_attn": "attn_qkv",
          "attn.c_proj": "attn_output",
          ln_2: "ffn_norm",
          "mlp.c_fc": "ffn_up",
          "mlp.c_proj": "ffn_down",
        },
        transposed: ["attn_qkv", "attn_output", "ffn_up", "ffn_down"],
      },
    };
  },
  smollm3: (hfConfig, math) => {
    const config = resolveSmolLm3Config(hfConfig);
    requireComputed("smollm3", {
      hidden_act: [config.activation, "silu"],
      attention_bias: [config.attentionBias, false],
      mlp_bias: [config.mlpBias, false],
      "positions in other layers than three of four (no_rope_layers)": [
        config.isRotary.some((isRotary, i) => isRotary !== ((i + 1) % 4 !== 0)),
        false,
      ],
    });
    const [window, rope] = [windowParts(config, config.windows), ropeParts(config.rope, math)];
    return {
      architecture: "smollm3",
      names: llamaNames(config, FEED_FORWARD),
      ...withRope(rope, sizeKeys(config), rmsKeys(config), window.keys),
      notes: [...window.notes, ...rope.notes],
    };
  },
  granite: (hfConfig, math) => {
    const config = resolveGraniteConfig(hfConfig);
    requireComputed("granite", { hidden_act: [config.activation, "silu"] });
    const factors = {
      "attention.scale": float32(config.attentionMultiplier),
      embedding_scale: float32(config.embeddingMultiplier),
      residual_scale: float32(config.residualMultiplier),
      logit_scale: float32(config.logitsScaling),
    };
    return {
      architecture: "granite",
      names: llamaNames(config, FEED_FORWARD),
      ...withRope(ropeParts(config.rope, math), sizeKeys(config), rmsKeys(config), factors),
    };
  },
};
