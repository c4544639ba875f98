/**
 * LFM2 (Liquid AI 2025; transformers `modeling_lfm2.py`): blocks whose tokens see each other by a short gated convolution, or in
 * some layers by grouped-query attention with norms of each head's queries and keys.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Device } from "../../device/device.ts";
import { type LayerContext, SelfAttention } from "../../nn/attention.ts";
import { CausalConv } from "../../nn/causal_conv.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { Linear } from "../../nn/linear.ts";
import { Module } from "../../nn/module.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { withoutPadding } from "../../nn/padding.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { attentionPlan, type BlockPlan } from "../tensor_plans.ts";
import type { Lfm2Config } from "./config.ts";

const ATTENTION_NAMES = { oProj: "out_proj", qNorm: "q_layernorm", kNorm: "k_layernorm" };
const MLP_NAMES = { gateProj: "w1", upProj: "w3", downProj: "w2" };
const BLOCK_NAMES = { mlp: "feed_forward", inputLayernorm: "operator_norm", postAttentionLayernorm: "ffn_norm" };
const PLAN_NAMES = { output: "out_proj", norms: ["q_layernorm", "k_layernorm"] };
const OTHER_PLAN: BlockPlan = {
  "conv.in_proj": "packed_colwise",
  "conv.conv": "colwise",
  "conv.out_proj": "rowwise",
  "feed_forward.w1": "colwise",
  "feed_forward.w3": "colwise",
  "feed_forward.w2": "rowwise",
};

/** Of `[b, c, x] = inProj(x)`: `outProj(c * conv(b * x))`. */
class Lfm2ShortConv extends Module<[x: Tensor, context: LayerContext], Tensor> {
  readonly conv: CausalConv;
  readonly inProj: Linear;
  readonly outProj: Linear;

  constructor(device: Device, { hiddenSize, convWidth: width, convBias: bias, init }: Lfm2Config) {
    super();
    this.conv = new CausalConv(device, hiddenSize, { width, bias, init });
    this.inProj = new Linear(device, hiddenSize, 3 * hiddenSize, { bias, init, packs: 3 });
    this.outProj = new Linear(device, hiddenSize, hiddenSize, { bias, init });
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): Tensor {
    const parts = this.inProj.call(withoutPadding(x, context), context).chunk(3, -1);
    const [b, c, inner] = [at(parts, 0, "part"), at(parts, 1, "part"), at(parts, 2, "part")];
    return this.outProj.call(c.mul(this.conv.call(b.mul(inner), context)), context);
  }
}

/** LFM2 with a language-model head. */
export class Lfm2ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Lfm2Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize } = config;
    const norm = (width: number = hiddenSize): RMSNorm => new RMSNorm(device, width, config.normEps);
    const rotary = new RotaryTables(device, config.rope);
    const qkNorm = { over: "head", make: norm } as const;
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Lfm2" },
      tensorPlan: { cutsEmbedding: true, blocks: { ...attentionPlan(config, PLAN_NAMES), ...OTHER_PLAN } },
      layers: blocksOf(config, (i) => {
        const isConv = config.layerTypes[i] === "conv";
        return new PreNormBlock({
          selfAttn: isConv
            ? new Lfm2ShortConv(device, config)
            : new SelfAttention(device, { ...config, rotary, qkNorm, names: ATTENTION_NAMES }),
          mlp: new GatedFeedForward(device, { ...config, activation: "silu", names: MLP_NAMES }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
          names: isConv ? { ...BLOCK_NAMES, selfAttn: "conv" } : BLOCK_NAMES,
        });
      }),
      norm: norm(),
      names: { body: { norm: "embedding_norm" } },
    });
  }
}
