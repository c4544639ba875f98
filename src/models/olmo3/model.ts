/**
 * Olmo 3 (Ai2 2025; transformers `modeling_olmo3.py`): norms behind attention and feed-forward instead of before them, norms of
 * queries and keys over all heads together, three layers with a window to one without, each type with its own rotation.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PostNormBlock } from "../../nn/post_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { gatedPlan, GATHERED_ATTENTION_PLAN } from "../tensor_plans.ts";
import type { Olmo3Config } from "./config.ts";

/** Olmo 3 with a language-model head. */
export class Olmo3ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Olmo3Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, attentionBias: bias } = config;
    const norm = (width: number = hiddenSize): RMSNorm => new RMSNorm(device, width, config.rmsNormEps);
    const rotaries = {
      full_attention: new RotaryTables(device, config.rotations.full_attention),
      sliding_attention: new RotaryTables(device, config.rotations.sliding_attention),
    };
    const qkNorm = { over: "projection", make: norm } as const;
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Olmo3" },
      tensorPlan: { blocks: { ...GATHERED_ATTENTION_PLAN, ...gatedPlan() } },
      layers: blocksOf(config, (i) => {
        const [rotary, window] = [rotaries[at(config.layerTypes, i, "layer type")], config.windows[i]];
        const options = { ...config, rotary, window, qkNorm, qkvBias: bias, outBias: bias };
        return new PostNormBlock({
          selfAttn: new SelfAttention(device, options),
          mlp: new GatedFeedForward(device, config),
          postAttentionLayernorm: norm(),
          postFeedforwardLayernorm: norm(),
        });
      }),
      norm: norm(),
    });
  }
}
