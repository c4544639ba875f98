/**
 * GGUF plans of the families with norms behind attention and feed-forward, as llama.cpp's `convert_hf_to_gguf.py` writes them.
 *
 * @module
 */
import { float32, uint32 } from "../../checkpoint/gguf/format.ts";
import { UnsupportedError } from "../../errors.ts";
import { resolveGemma2Config } from "../gemma2/config.ts";
import { resolveGemma3Config } from "../gemma3/config.ts";
import { resolveGlm4Config } from "../glm4/config.ts";
import { resolveOlmo2Config } from "../olmo2/config.ts";
import { ATTENTION, type FamilyPlan, FEED_FORWARD, layersNamed, QK_NORMS, withRope } from "./layer_names.ts";
import { type Keys, requireComputed, rmsKeys, ropeParts, sizeKeys } from "./metadata.ts";

/** Norms of a block of Gemma 2 and 3 besides the first. */
const GEMMA_NORMS = {
  post_attention_layernorm: "post_attention_norm",
  pre_feedforward_layernorm: "ffn_norm",
  post_feedforward_layernorm: "post_ffw_norm",
};

/** Families with norms behind attention and feed-forward, by `model_type`. */
export const POST_NORM_FAMILIES: Readonly<Record<string, FamilyPlan>> = {
  olmo2: (hfConfig, math) => {
    const config = resolveOlmo2Config(hfConfig);
    requireComputed("olmo2", {
      hidden_act: [config.activation, "silu"],
      attention_bias: [config.attentionBias, false],
    });
    const { input_layernorm: _norm, ...attention } = ATTENTION;
    const norms = {
      post_attention_layernorm: "post_attention_norm",
      post_feedforward_layernorm: "post_ffw_norm",
    };
    return {
      architecture: "olmo2",
      names: layersNamed(attention, QK_NORMS, FEED_FORWARD, norms),
      ...withRope(ropeParts(config.rope, math), sizeKeys(config), rmsKeys(config)),
    };
  },
  glm4: (hfConfig, math) => {
    const config = resolveGlm4Config(hfConfig);
    requireComputed("glm4", { hidden_act: [config.activation, "silu"] });
    return {
      architecture: "glm4",
      names: layersNamed(ATTENTION, {
        post_self_attn_layernorm: "post_attention_norm",
        post_mlp_layernorm: "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
      }),
      ...withRope(ropeParts(config.rope, math), sizeKeys(config), rmsKeys(config)),
    };
  },
  gemma2: (hfConfig, math) => {
    const config = resolveGemma2Config(hfConfig);
    const { attentionSoftcap, logitsSoftcap } = config;
    requireComputed("gemma2", {
      hidden_activation: [config.activation, "geluTanh"],
      tie_word_embeddings: [config.tieWordEmbeddings, true],
      attention_bias: [config.attentionBias, false],
      "a query_pre_attn_scalar that is not head_dim": [config.attentionScale !== 1 / Math.sqrt(config.headDim), false],
      "other layers without a window than every second (layer_types)": [
        config.windows.some((window, i) => (window === undefined) !== (i % 2 === 1)),
        false,
      ],
    });
    if (attentionSoftcap === undefined || logitsSoftcap === undefined) {
      throw new UnsupportedError(
        "Cannot write a model without attn_logit_softcapping or final_logit_softcapping into GGUF: llama.cpp's architecture " +
          "'gemma2' always bounds both",
      );
    }
    const window = config.windows.find((one) => one !== undefined);
    const keys: Keys = {
      attn_logit_softcapping: float32(attentionSoftcap),
      final_logit_softcapping: float32(logitsSoftcap),
      ...window === undefined ? {} : { "attention.sliding_window": uint32(window) },
    };
    return {
      architecture: "gemma2",
      names: { ...layersNamed(ATTENTION, FEED_FORWARD, GEMMA_NORMS), zeroCentered: true },
      ...withRope(ropeParts(config.rope, math), sizeKeys(config), rmsKeys(config), keys),
    };
  },
  gemma3_text: (hfConfig, math) => {
    const config = resolveGemma3Config(hfConfig);
    const { full_attention: rotation, sliding_attention: slidingRotation } = config.rotations;
    const isUsual = slidingRotation.theta === 10000 && slidingRotation.scaling.type === "default";
    requireComputed("gemma3", {
      hidden_activation: [config.activation, "geluTanh"],
      attention_bias: [config.attentionBias, false],
      final_logit_softcapping: [config.logitsSoftcap, undefined],
      "a query_pre_attn_scalar that is not head_dim": [config.attentionScale !== 1 / Math.sqrt(config.headDim), false],
      "other layers without a window than every sixth (layer_types)": [
        config.windows.some((window, i) => (window === undefined) !== ((i + 1) % 6 === 0)),
        false,
      ],
      "other rotations in layers with a window than by base 10000": [!isUsual, false],
    });
    const window = config.windows.find((one) => one !== undefined);
    const keys: Keys = window === undefined ? {} : { "attention.sliding_window": uint32(window) };
    return {
      architecture: "gemma3",
      names: { ...layersNamed(ATTENTION, QK_NORMS, FEED_FORWARD, GEMMA_NORMS), zeroCentered: true },
      ...withRope(ropeParts(rotation, math), sizeKeys(config), rmsKeys(config), keys),
    };
  },
};
