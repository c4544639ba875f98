/**
 * OLMo 2 (Ai2 2024; transformers `modeling_olmo2.py`): norms behind attention and feed-forward instead of before them, and norms
 * of queries and keys over all heads together.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PostNormBlock } from "../../nn/post_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { gatedPlan, GATHERED_ATTENTION_PLAN } from "../tensor_plans.ts";
import type { Olmo2Config } from "./config.ts";

/** OLMo 2 with a language-model head. */
export class Olmo2ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Olmo2Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, attentionBias: bias } = config;
    const norm = (width: number = hiddenSize): RMSNorm => new RMSNorm(device, width, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    const qkNorm = { over: "projection", make: norm } as const;
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Olmo2" },
      tensorPlan: { blocks: { ...GATHERED_ATTENTION_PLAN, ...gatedPlan() } },
      layers: blocksOf(config, () =>
        new PostNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, qkNorm, qkvBias: bias, outBias: bias }),
          mlp: new GatedFeedForward(device, config),
          postAttentionLayernorm: norm(),
          postFeedforwardLayernorm: norm(),
        })),
      norm: norm(),
    });
  }
}
