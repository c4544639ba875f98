/**
 * Qwen3-MoE (Qwen Team 2025; transformers `modeling_qwen3_moe.py`): Qwen3 with a mixture of experts in most layers.
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
import { attentionPlan, EXPERTS_PLAN, gatedPlan, HEAD_NORMS } from "../tensor_plans.ts";
import type { Qwen3MoeConfig } from "./config.ts";

/** Qwen3-MoE with a language-model head. */
export class Qwen3MoeForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Qwen3MoeConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, topK, normalize, attentionBias: bias, moeIntermediateSize: intermediateSize, balance } = config;
    const norm = (width: number = hiddenSize): RMSNorm => new RMSNorm(device, width, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    const qkNorm = { over: "head", make: norm } as const;
    const router = { topK, normalize };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Qwen3Moe" },
      tensorPlan: { blocks: { ...attentionPlan(config, HEAD_NORMS), ...EXPERTS_PLAN, ...gatedPlan() } },
      layers: blocksOf(config, (i) =>
        new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, qkNorm, qkvBias: bias, outBias: bias }),
          mlp: config.sparse[i]
            ? new MixtureOfExperts(device, { ...config, intermediateSize, router })
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
