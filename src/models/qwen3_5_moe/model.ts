/**
 * The text models of Qwen3.5's mixtures (Qwen Team 2026; transformers `modeling_qwen3_5_moe.py`): Qwen3.5 with a mixture of experts
 * beside a gated one for all tokens in every layer.
 *
 * @module
 */
import type { DirectoryTensor } from "../../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../../device/device.ts";
import { MixtureOfExperts } from "../../nn/mixture_of_experts.ts";
import { DecoderForCausalLm } from "../decoder.ts";
import { expertFiles } from "../expert_files.ts";
import { hybridParts, QWEN3_5_FILES } from "../hybrid.ts";
import { attentionPlan, EXPERTS_PLAN, gatedPlan, HEAD_NORMS, LINEAR_ATTENTION_PLAN } from "../tensor_plans.ts";
import type { Qwen35MoeConfig } from "./config.ts";

/** A mixture of Qwen3.5's with a language-model head. */
export class Qwen35MoeForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Qwen35MoeConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { topK, moeIntermediateSize: intermediateSize, sharedIntermediateSize, activation, balance } = config;
    const router = { topK, normalize: true };
    const shared = { intermediateSize: sharedIntermediateSize, activation, gated: true };
    const mixture = { ...config, intermediateSize, router, shared };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Qwen3_5Moe" },
      tensorPlan: {
        blocks: {
          ...attentionPlan(config, HEAD_NORMS),
          ...LINEAR_ATTENTION_PLAN,
          ...EXPERTS_PLAN,
          ...gatedPlan("mlp.shared_expert"),
        },
      },
      ...hybridParts(device, config, () => new MixtureOfExperts(device, mixture)),
      balance,
      otherFiles: QWEN3_5_FILES,
    });
  }

  override directoryTensors(): Iterable<DirectoryTensor> {
    return expertFiles(this);
  }
}
