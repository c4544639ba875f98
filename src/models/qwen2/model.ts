/**
 * Qwen2 and Qwen2.5 (Qwen Team 2024; transformers `modeling_qwen2.py`): Llama with biases of queries, keys and values, and optional
 * windows in some layers.
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
import type { Qwen2Config } from "./config.ts";

/** Qwen2 with a language-model head. */
export class Qwen2ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Qwen2Config, hfConfig: Readonly<Record<string, unknown>>) {
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Qwen2" },
      tensorPlan: { blocks: { ...attentionPlan(config), ...gatedPlan() } },
      layers: blocksOf(config, (i) => {
        const window = config.windows[i];
        return new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, window, qkvBias: true }),
          mlp: new GatedFeedForward(device, config),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        });
      }),
      norm: norm(),
    });
  }
}
