/**
 * Mistral (Jiang et al. 2023; transformers `modeling_mistral.py`): Llama with a sliding window in every layer.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { attentionPlan, gatedPlan } from "../tensor_plans.ts";
import type { MistralConfig } from "./config.ts";

/** Mistral with a language-model head. */
export class MistralForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: MistralConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Mistral" },
      tensorPlan: { blocks: { ...attentionPlan(config), ...gatedPlan() } },
      layers: blocksOf(config, () =>
        new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary }),
          mlp: new GatedFeedForward(device, config),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        })),
      norm: norm(),
    });
  }
}
