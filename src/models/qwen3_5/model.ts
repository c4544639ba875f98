/**
 * The text models of Qwen3.5 (Qwen Team 2026; transformers `modeling_qwen3_5.py`): three layers of linear attention to one of gated
 * attention, a quarter of each head turned, norms whose weights are what is added to 1.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { GatedDeltaNet } from "../../nn/gated_delta_net.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import type { Qwen35Config } from "./config.ts";

/** Qwen3.5 with a language-model head. */
export class Qwen35ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Qwen35Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, rmsNormEps, attentionBias: bias } = config;
    const norm = (width: number = hiddenSize): RMSNorm =>
      new RMSNorm(device, width, rmsNormEps, { zeroCentered: true });
    const rotary = new RotaryTables(device, config.rope);
    const qkNorm = { over: "head", make: norm } as const;
    const attention = { ...config, rotary, qkNorm, gated: true, qkvBias: bias, outBias: bias };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Qwen3_5" },
      layers: blocksOf(config, (i) => {
        const isLinear = config.layerTypes[i] === "linear_attention";
        return new PreNormBlock({
          selfAttn: isLinear ? new GatedDeltaNet(device, config.linear) : new SelfAttention(device, attention),
          mlp: new GatedFeedForward(device, config),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
          names: isLinear ? { selfAttn: "linear_attn" } : {},
        });
      }),
      norm: norm(),
    });
  }
}
