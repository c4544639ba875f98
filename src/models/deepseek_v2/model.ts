/**
 * DeepSeek-V2 (DeepSeek-AI 2024; transformers `modeling_deepseek_v2.py`): latent attention whose neighbors are turned together, and
 * behind some dense layers mixtures of experts: the best by softmax, with their shares as weights, beside an expert for all tokens.
 *
 * @module
 */
import type { DirectoryTensor } from "../../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../../device/device.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { LatentAttention } from "../../nn/latent_attention.ts";
import { MixtureOfExperts } from "../../nn/mixture_of_experts.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { expertFiles } from "../expert_files.ts";
import { EXPERTS_PLAN, gatedPlan, LATENT_PLAN } from "../tensor_plans.ts";
import type { DeepseekV2Config } from "./config.ts";

/** DeepSeek-V2 with a language-model head. */
export class DeepseekV2ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: DeepseekV2Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { topK, routedScale: scale, groups, moeIntermediateSize: intermediateSize, mlpBias: bias } = config;
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const attention = { ...config.attention, rotary: new RotaryTables(device, config.rope) };
    const router = { topK, scale, float32Logits: true, groups };
    const mixture = { ...config, intermediateSize, router, names: { sharedExpert: "shared_experts" } };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "DeepseekV2", mixture: "DeepseekV2Moe" },
      tensorPlan: { blocks: { ...LATENT_PLAN, ...EXPERTS_PLAN, ...gatedPlan("mlp.shared_experts"), ...gatedPlan() } },
      layers: blocksOf(config, (i) =>
        new PreNormBlock({
          selfAttn: new LatentAttention(device, attention),
          mlp: i < config.firstSparse
            ? new GatedFeedForward(device, { ...config, bias })
            : new MixtureOfExperts(device, mixture),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        })),
      norm: norm(),
    });
  }

  override directoryTensors(): Iterable<DirectoryTensor> {
    return expertFiles(this);
  }
}
