/**
 * GLM-4-MoE-Lite (Z.ai 2026; transformers `modeling_glm4_moe_lite.py`): latent attention, and in most layers a mixture of experts,
 * which are chosen by their sigmoids and a bias that is not trained, beside one for all tokens.
 *
 * @module
 */
import type { DirectoryTensor } from "../../checkpoint/state_dict.ts";
import type { Device } from "../../device/device.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { LatentAttention } from "../../nn/latent_attention.ts";
import { MixtureOfExperts } from "../../nn/mixture_of_experts.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { expertFiles } from "../expert_files.ts";
import type { Glm4MoeLiteConfig } from "./config.ts";

/** GLM-4-MoE-Lite with a language-model head. */
export class Glm4MoeLiteForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Glm4MoeLiteConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { topK, normalize, routedScale: scale, groups, moeIntermediateSize: intermediateSize } = config;
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const attention = { ...config.attention, rotary: new RotaryTables(device, config.rope) };
    const choice = { scoring: "sigmoid", correctionBias: true, float32Logits: true } as const;
    const router = { topK, normalize, scale, groups, ...choice };
    const mixture = { ...config, intermediateSize, router, names: { sharedExpert: "shared_experts" } };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Glm4MoeLite", mixture: "Glm4MoeLiteMoE" },
      layers: blocksOf(config, (i) =>
        new PreNormBlock({
          selfAttn: new LatentAttention(device, attention),
          mlp: config.sparse[i] ? new MixtureOfExperts(device, mixture) : new GatedFeedForward(device, config),
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
