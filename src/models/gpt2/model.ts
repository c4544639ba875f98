/**
 * GPT-2 (Radford et al. 2019; transformers `modeling_gpt2.py`): learned positions, LayerNorm, one projection for queries, keys and
 * values, a plain feed-forward, biases everywhere, and weights [in, out].
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { Embedding } from "../../nn/embedding.ts";
import { FeedForward } from "../../nn/feed_forward.ts";
import { LayerNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { attentionPlan } from "../tensor_plans.ts";
import type { Gpt2Config } from "./config.ts";

const ATTENTION_NAMES = { qkvProj: "c_attn", oProj: "c_proj" };
const MLP_NAMES = { fc1: "c_fc", fc2: "c_proj" };
const BLOCK_NAMES = { selfAttn: "attn", inputLayernorm: "ln_1", postAttentionLayernorm: "ln_2" };
const BODY_NAMES = { embedTokens: "wte", embedPositions: "wpe", layers: "h", norm: "ln_f" };
const PLAN_NAMES = { attention: "attn", inputs: ["c_attn"], output: "c_proj" };

/** GPT-2 with a language-model head. */
export class Gpt2ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Gpt2Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, maxPositions, init, embedDropout, residDropout } = config;
    const norm = (): LayerNorm => new LayerNorm(device, hiddenSize, { eps: config.layerNormEps });
    const shared = { ...config, layout: "inOut" } as const;
    const biases = { qkvBias: true, outBias: true };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "GPT2", block: "GPT2Block", whole: "GPT2LMHeadModel" },
      tensorPlan: { blocks: { ...attentionPlan(config, PLAN_NAMES), "mlp.c_fc": "colwise", "mlp.c_proj": "rowwise" } },
      embedPositions: new Embedding(device, maxPositions, hiddenSize, { init }),
      embedDropout,
      layers: blocksOf(config, (i) => {
        const scale = at(config.scales, i, "scale");
        return new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...shared, ...biases, scale, fused: true, names: ATTENTION_NAMES }),
          mlp: new FeedForward(device, { ...shared, bias: true, names: MLP_NAMES }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
          attnDropout: residDropout,
          mlpDropout: residDropout,
          names: BLOCK_NAMES,
        });
      }),
      norm: norm(),
      // Causal masks, which older versions of transformers stored.
      otherFiles: { ignored: [/attn\.(masked_)?bias$/] },
      names: { whole: { model: "transformer" }, body: BODY_NAMES },
    });
  }
}
