/**
 * Qwen2-MoE (Qwen Team 2024; transformers `modeling_qwen2_moe.py`): Llama with biases of queries, keys and values, optional
 * windows in some layers, and in most layers a mixture of experts beside a gated one for all tokens.
 *
 * @module
 */
import type { DirectoryTensor } from "../../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { MixtureOfExperts } from "../../nn/mixture_of_experts.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { expertFiles } from "../expert_files.ts";
import { attentionPlan, EXPERTS_PLAN, gatedPlan } from "../tensor_plans.ts";
import type { Qwen2MoeConfig } from "./config.ts";

/** Qwen2-MoE with a language-model head. */
export class Qwen2MoeForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Qwen2MoeConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { topK, normalize, activation, moeIntermediateSize: intermediateSize, balance } = config;
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    const router = { topK, normalize };
    const shared = { intermediateSize: config.sharedIntermediateSize, activation, gated: true };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Qwen2Moe" },
      tensorPlan: { blocks: { ...attentionPlan(config), ...EXPERTS_PLAN, ...gatedPlan() } },
      layers: blocksOf(config, (i) =>
        new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, window: config.windows[i] }),
          mlp: config.sparse[i]
            ? new MixtureOfExperts(device, { ...config, intermediateSize, router, shared })
            : new GatedFeedForward(device, config),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        })),
      norm: norm(),
      balance,
    });
  }

  override directoryTensors(): Iterable<DirectoryTensor> {
    return expertFiles(this);
  }
}
