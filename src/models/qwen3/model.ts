/**
 * Qwen3 (Qwen Team 2025; transformers `modeling_qwen3.py`): Llama with norms of each head's queries and keys, heads whose size is
 * free, and optional windows in some layers.
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
import { attentionPlan, gatedPlan, HEAD_NORMS } from "../tensor_plans.ts";
import type { Qwen3Config } from "./config.ts";

/** Qwen3 with a language-model head. */
export class Qwen3ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Qwen3Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, attentionBias: bias } = config;
    const norm = (width: number = hiddenSize): RMSNorm => new RMSNorm(device, width, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    const qkNorm = { over: "head", make: norm } as const;
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Qwen3" },
      tensorPlan: { blocks: { ...attentionPlan(config, HEAD_NORMS), ...gatedPlan() } },
      layers: blocksOf(config, (i) => {
        const window = config.windows[i];
        return new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, window, qkNorm, qkvBias: bias, outBias: bias }),
          mlp: new GatedFeedForward(device, config),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        });
      }),
      norm: norm(),
    });
  }
}
