/**
 * Llama (Touvron et al. 2023; transformers `modeling_llama.py`): pre-norm blocks of grouped-query attention with rotary
 * positions and SwiGLU.
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
import type { LlamaConfig } from "./config.ts";

/** Llama with a language-model head. */
export class LlamaForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: LlamaConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { attentionBias: bias, mlpBias } = config;
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Llama" },
      tensorPlan: { blocks: { ...attentionPlan(config), ...gatedPlan() } },
      layers: blocksOf(config, () =>
        new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, qkvBias: bias, outBias: bias }),
          mlp: new GatedFeedForward(device, { ...config, bias: mlpBias }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        })),
      norm: norm(),
    });
  }
}
