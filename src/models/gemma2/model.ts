/**
 * Gemma 2 (Google 2024; transformers `modeling_gemma2.py`). Beside Llama:
 * - norms before and behind attention and feed-forward, all of them zero-centered;
 * - a window in every other layer, from the first on;
 * - scores of attention and logits bounded by a tanh;
 * - embeddings times the root of their width.
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
import { attentionPlan, gatedPlan } from "../tensor_plans.ts";
import type { Gemma2Config } from "./config.ts";

/** Gemma 2 with a language-model head. */
export class Gemma2ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Gemma2Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, attentionBias: bias, attentionScale: scale, attentionSoftcap: softcap, logitsSoftcap } = config;
    const norm = (): RMSNorm => new RMSNorm(device, hiddenSize, config.rmsNormEps, { zeroCentered: true });
    const rotary = new RotaryTables(device, config.rope);
    const attention = { ...config, rotary, scale, softcap, qkvBias: bias, outBias: bias };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Gemma2" },
      tensorPlan: { blocks: { ...attentionPlan(config), ...gatedPlan() } },
      embedScale: { factor: Math.sqrt(hiddenSize), isRounded: true },
      layers: blocksOf(config, (i) =>
        new PostNormBlock({
          selfAttn: new SelfAttention(device, { ...attention, window: config.windows[i] }),
          mlp: new GatedFeedForward(device, config),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
          preFeedforwardLayernorm: norm(),
          postFeedforwardLayernorm: norm(),
        })),
      norm: norm(),
      logitsSoftcap,
    });
  }
}
