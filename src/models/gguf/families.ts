/**
 * The families whose models are written into GGUF files, as llama.cpp's `convert_hf_to_gguf.py` writes them: architecture,
 * keys and names of tensors.
 *
 * @module
 */
import { float32, type GgufMetadata, type GgufValue, string, uint32 } from "../../checkpoint/gguf/format.ts";
import type { GgufPlan, PlannedTensor } from "../../checkpoint/gguf/plan.ts";
import { didYouMean } from "../../config/nearest.ts";
import type { PortableMath } from "../../device/device.ts";
import { UnsupportedError } from "../../errors.ts";
import { whichAre } from "../../words.ts";
import type { CausalLm } from "../causal_lm.ts";
import { resolveGpt2Config } from "../gpt2/config.ts";
import { resolveLlamaConfig } from "../llama/config.ts";
import { resolveMistralConfig } from "../mistral/config.ts";
import { resolveMixtralConfig } from "../mixtral/config.ts";
import { resolvePhi3Config } from "../phi3/config.ts";
import { resolvePhiConfig } from "../phi/config.ts";
import { resolveQwen2MoeConfig } from "../qwen2_moe/config.ts";
import { resolveQwen3Config } from "../qwen3/config.ts";
import { resolveQwen3MoeConfig } from "../qwen3_moe/config.ts";
import { type Keys, requireComputed, rmsKeys, type RopeParts, ropeParts, sizeKeys, windowParts } from "./metadata.ts";
import { type FamilyNames, namedTensors } from "./names.ts";

type HfConfig = Readonly<Record<string, unknown>>;

/** The parts of a plan that a family gives for its model. */
interface FamilyParts {
  readonly architecture: string;
  readonly keys: Keys;
  readonly names: FamilyNames;
  readonly tensors?: readonly PlannedTensor[];
  readonly notes?: readonly string[];
}

const OUTER = {
  "model.embed_tokens": "token_embd",
  "model.norm": "output_norm",
  lm_head: "output",
} as const;

const ATTENTION = {
  input_layernorm: "attn_norm",
  "self_attn.q_proj": "attn_q",
  "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v",
  "self_attn.o_proj": "attn_output",
  post_attention_layernorm: "ffn_norm",
} as const;

const QK_NORMS = { "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm" } as const;

const FEED_FORWARD = { "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down" } as const;

const EXPERTS = { "mlp.gate": "ffn_gate_inp", "mlp.experts.down_proj": "ffn_down_exps" } as const;

const SHARED_EXPERT = {
  "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
  "mlp.shared_expert.up_proj": "ffn_up_shexp",
  "mlp.shared_expert.down_proj": "ffn_down_shexp",
  "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
} as const;

/** Tables as one; of a key that several have, the last one's value. */
function joined<Value>(tables: readonly Readonly<Record<string, Value>>[]): Readonly<Record<string, Value>> {
  return Object.fromEntries(tables.flatMap((table) => Object.entries(table)));
}

const layersNamed = (...tables: readonly Readonly<Record<string, string>>[]): FamilyNames => ({
  layers: "model.layers",
  outer: OUTER,
  inner: joined(tables),
});

/** Llama's architecture turns neighbouring elements of a head, where transformers turns halves. */
function llamaNames(
  { numHeads, numKvHeads }: { readonly numHeads: number; readonly numKvHeads: number },
  ...tables: readonly Readonly<Record<string, string>>[]
): FamilyNames {
  return { ...layersNamed(ATTENTION, ...tables), heads: { attn_q: numHeads, attn_k: numKvHeads } };
}

const expertKeys = ({ numExperts, topK }: { readonly numExperts: number; readonly topK: number }): Keys => ({
  expert_count: uint32(numExperts),
  expert_used_count: uint32(topK),
});

const withRope = ({ keys, ...rest }: RopeParts, ...others: readonly Keys[]): RopeParts => ({
  ...rest,
  keys: joined([...others, keys]),
});

/** All families, by `model_type`. */
const FAMILIES: Readonly<Record<string, (hfConfig: HfConfig, math: PortableMath) => FamilyParts>> = {
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
      "other factors on scores (scale_attn_weights, scale_attn_by_inverse_layer_idx)": [
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
};

/** The families that GGUF files are written of, by `model_type`. */
export const GGUF_FAMILIES: readonly string[] = Object.keys(FAMILIES);

/**
 * The contents of a model's GGUF file besides the tokenizer.
 *
 * @param model without memory is enough
 * @throws {UnsupportedError} for a family that is not mapped, naming those that are, or for options that llama.cpp computes otherwise
 */
export function ggufPlan(model: CausalLm): GgufPlan {
  const { hfConfig, device: { math } } = model;
  const family = String(hfConfig["model_type"]);
  const parts = Object.hasOwn(FAMILIES, family) ? FAMILIES[family]?.(hfConfig, math) : undefined;
  if (parts === undefined) {
    const hint = didYouMean(family, GGUF_FAMILIES);
    throw new UnsupportedError(
      `Cannot write a model of model_type '${family}' into GGUF: ${whichAre(GGUF_FAMILIES, "supported")}${hint}`,
    );
  }
  const { architecture, keys, names, tensors = [], notes = [] } = parts;
  const metadata: GgufMetadata = new Map<string, GgufValue>([
    ["general.architecture", string(architecture)],
    ["general.type", string("model")],
    ...Object.entries(keys).map(([key, value]) => [`${architecture}.${key}`, value] as const),
  ]);
  const all = [...tensors, ...namedTensors(model.namedParameters(), names)];
  return { architecture, metadata, tensors: all, notes };
}
