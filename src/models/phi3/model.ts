/**
 * Phi-3 (Abdin et al. 2024; transformers `modeling_phi3.py`): Llama with one projection for queries, keys and values, one for gate
 * and up, optional rotary embedding on a part of each head, and an optional sliding window in every layer.
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
import { type BlockPlan, styled } from "../tensor_plans.ts";
import type { Phi3Config } from "./config.ts";

/** All heads on all ranks, by parts of the weights: one projection has queries, keys and values of unequal widths. */
const GATHERED_PLAN: BlockPlan = {
  ...styled("self_attn", ["qkv_proj"], "colwise_gather_output"),
  ...styled("mlp", ["gate_up_proj"], "colwise_gather_output"),
  ...styled("self_attn", ["o_proj"], "rowwise_split_input"),
  ...styled("mlp", ["down_proj"], "rowwise_split_input"),
};

/** Phi-3 with a language-model head. */
export class Phi3ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Phi3Config, hfConfig: Readonly<Record<string, unknown>>) {
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Phi3" },
      tensorPlan: { blocks: GATHERED_PLAN },
      layers: blocksOf(config, () =>
        new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, fused: true }),
          mlp: new GatedFeedForward(device, { ...config, fused: true }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
          attnDropout: config.residDropout,
          mlpDropout: config.residDropout,
        })),
      norm: norm(),
    });
  }
}
