/**
 * SmolLM3 (Hugging Face 2025; transformers `modeling_smollm3.py`): Llama with layers that know no positions, by default every
 * fourth.
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
import type { SmolLm3Config } from "./config.ts";

/** SmolLM3 with a language-model head. */
export class SmolLm3ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: SmolLm3Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { attentionBias: bias, mlpBias } = config;
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    super(device, config, hfConfig, {
      hfClasses: { prefix: "SmolLM3" },
      tensorPlan: { blocks: { ...attentionPlan(config), ...gatedPlan() } },
      layers: blocksOf(config, (i) => {
        const positions = config.isRotary[i] ? { rotary } : {};
        const options = { ...config, ...positions, window: config.windows[i], qkvBias: bias, outBias: bias };
        return new PreNormBlock({
          selfAttn: new SelfAttention(device, options),
          mlp: new GatedFeedForward(device, { ...config, bias: mlpBias }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        });
      }),
      norm: norm(),
    });
  }
}
