/**
 * gpt-oss (OpenAI 2025; transformers `modeling_gpt_oss.py`): Mixtral with attention sinks, windows in every other layer, biases
 * everywhere, experts whose gate and up projections are interleaved and clamped, and a router that takes a softmax of what it chose.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { MixtureOfExperts } from "../../nn/mixture_of_experts.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { attentionPlan, EXPERTS_PLAN, styled } from "../tensor_plans.ts";
import type { GptOssConfig } from "./config.ts";

/** gpt-oss with a language-model head. */
export class GptOssForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: GptOssConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, rmsNormEps, topK, attentionBias: bias, balance } = config;
    const norm = (): RMSNorm => new RMSNorm(device, hiddenSize, rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    const router = { topK, scoring: "softmaxOfTop", bias: true } as const;
    const experts = { ...config, layout: "inOut", bias: true } as const;
    const sinks = styled("self_attn", ["sinks"], "colwise");
    super(device, config, hfConfig, {
      hfClasses: { prefix: "GptOss", mixture: "GptOssMLP" },
      tensorPlan: { cutsEmbedding: true, blocks: { ...attentionPlan(config), ...sinks, ...EXPERTS_PLAN } },
      layers: blocksOf(config, (i) => {
        const window = config.windows[i];
        return new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, window, qkvBias: bias, outBias: bias, sinks: true }),
          mlp: new MixtureOfExperts(device, { ...experts, router, names: { gate: "router" } }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        });
      }),
      norm: norm(),
      balance,
    });
  }
}
