/**
 * Granite (IBM 2024; transformers `modeling_granite.py`): Llama with constant factors on embeddings, attention scores, residuals
 * and logits.
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
import type { GraniteConfig } from "./config.ts";

/** Granite with a language-model head. */
export class GraniteForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: GraniteConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { attentionBias: bias, mlpBias, attentionMultiplier: scale, residualMultiplier: residualScale } = config;
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Granite" },
      tensorPlan: { blocks: { ...attentionPlan(config), ...gatedPlan() } },
      embedScale: { factor: config.embeddingMultiplier, isRounded: false },
      layers: blocksOf(config, () =>
        new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, scale, qkvBias: bias, outBias: bias }),
          mlp: new GatedFeedForward(device, { ...config, bias: mlpBias }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
          residualScale,
        })),
      norm: norm(),
      logitsScaling: config.logitsScaling,
    });
  }
}
