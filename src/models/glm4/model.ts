/**
 * GLM-4 (Zhipu AI 2025; transformers `modeling_glm4.py`): norms before and behind attention and feed-forward, rotary embedding on half
 * of each head, by pairs of neighbours, one projection for gate and up.
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
import { attentionPlan } from "../tensor_plans.ts";
import type { Glm4Config } from "./config.ts";

const BLOCK_NAMES = {
  postAttentionLayernorm: "post_self_attn_layernorm",
  preFeedforwardLayernorm: "post_attention_layernorm",
  postFeedforwardLayernorm: "post_mlp_layernorm",
};

/** GLM-4 with a language-model head. */
export class Glm4ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Glm4Config, hfConfig: Readonly<Record<string, unknown>>) {
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    const attention = { ...config, rotary, interleaved: true, qkvBias: config.attentionBias };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Glm4" },
      tensorPlan: {
        blocks: { ...attentionPlan(config), "mlp.gate_up_proj": "packed_colwise", "mlp.down_proj": "rowwise" },
      },
      layers: blocksOf(config, () =>
        new PostNormBlock({
          selfAttn: new SelfAttention(device, attention),
          mlp: new GatedFeedForward(device, { ...config, fused: true }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
          preFeedforwardLayernorm: norm(),
          postFeedforwardLayernorm: norm(),
          names: BLOCK_NAMES,
        })),
      norm: norm(),
    });
  }
}
