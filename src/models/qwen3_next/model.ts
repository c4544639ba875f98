/**
 * Qwen3-Next (Qwen Team 2025; transformers `modeling_qwen3_next.py`): three layers of linear attention, whose projections are grouped
 * by key heads, to one of gated attention, and in most layers a mixture of experts beside a gated one for all tokens.
 *
 * @module
 */
import type { DirectoryTensor } from "../../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../../device/device.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { MixtureOfExperts } from "../../nn/mixture_of_experts.ts";
import { DecoderForCausalLm } from "../decoder.ts";
import { expertFiles } from "../expert_files.ts";
import { hybridParts } from "../hybrid.ts";
import { attentionPlan, EXPERTS_PLAN, gatedPlan, HEAD_NORMS, LINEAR_ATTENTION_PLAN } from "../tensor_plans.ts";
import type { Qwen3NextConfig } from "./config.ts";

/** Qwen3-Next with a language-model head. */
export class Qwen3NextForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Qwen3NextConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { topK, moeIntermediateSize: intermediateSize, sharedIntermediateSize, activation, balance } = config;
    const router = { topK, normalize: config.normalize };
    const shared = { intermediateSize: sharedIntermediateSize, activation, gated: true };
    const mixture = { ...config, intermediateSize, router, shared };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Qwen3Next" },
      tensorPlan: {
        blocks: {
          ...attentionPlan(config, HEAD_NORMS),
          ...LINEAR_ATTENTION_PLAN,
          ...EXPERTS_PLAN,
          ...gatedPlan("mlp.shared_expert"),
          ...gatedPlan(),
        },
      },
      ...hybridParts(device, config, (i) => {
        return config.sparse[i] ? new MixtureOfExperts(device, mixture) : new GatedFeedForward(device, config);
      }),
      balance,
      // The layers that predict a second token.
      otherFiles: { ignored: [/^mtp/] },
    });
  }

  override directoryTensors(): Iterable<DirectoryTensor> {
    return expertFiles(this);
  }
}
