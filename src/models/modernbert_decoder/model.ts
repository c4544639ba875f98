/**
 * ModernBERT decoder (Weller et al. 2025; transformers `modeling_modernbert_decoder.py`): a norm behind the embedding and none
 * before the first attention, GeGLU of one projection, every third layer without a window, and a dense layer before the head.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { activate, type Activation, GatedFeedForward } from "../../nn/feed_forward.ts";
import { Linear } from "../../nn/linear.ts";
import { Module } from "../../nn/module.ts";
import type { RandomContext } from "../../nn/dropout.ts";
import { LayerNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { attentionPlan } from "../tensor_plans.ts";
import type { ModernBertDecoderConfig } from "./config.ts";

const ATTENTION_NAMES = { oProj: "Wo" };
const MLP_NAMES = { gateUpProj: "Wi", downProj: "Wo" };
const BLOCK_NAMES = { selfAttn: "attn", inputLayernorm: "attn_norm", postAttentionLayernorm: "mlp_norm" };
const BODY_NAMES = { embedTokens: "embeddings.tok_embeddings", embedNorm: "embeddings.norm", norm: "final_norm" };
const WHOLE_NAMES = { headTransform: "lm_head", lmHead: "decoder" };
const PLAN_NAMES = { attention: "attn", output: "Wo" };

/** `norm(activation(dense(x)))` */
class PredictionHead extends Module<[x: Tensor, context?: RandomContext], Tensor> {
  readonly dense: Linear;
  readonly norm: LayerNorm;
  readonly #activation: Activation;

  constructor(dense: Linear, norm: LayerNorm, activation: Activation) {
    super();
    this.dense = dense;
    this.norm = norm;
    this.#activation = activation;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context?: RandomContext): Tensor {
    return this.norm.call(activate(this.#activation, this.dense.call(x, context)));
  }
}

/** ModernBERT decoder with a language-model head. */
export class ModernBertDecoderForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: ModernBertDecoderConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, normEps: eps, normBias, attentionBias: bias, mlpBias, outInit, head } = config;
    const { attentionDropout, embedDropout, mlpDropout: dropout } = config;
    const norm = (): LayerNorm => new LayerNorm(device, hiddenSize, { eps, bias: normBias });
    const rotaries = {
      full_attention: new RotaryTables(device, config.rotations.full_attention),
      sliding_attention: new RotaryTables(device, config.rotations.sliding_attention),
    };
    const attention = { ...config, qkvBias: bias, outBias: bias, names: ATTENTION_NAMES };
    const dense = new Linear(device, hiddenSize, hiddenSize, { bias: head.denseBias, init: outInit });
    // Masks over a part of the width would differ from one rank's.
    const mlpPlan = dropout > 0
      ? { "mlp.Wi": "colwise_gather_output", "mlp.Wo": "rowwise_split_input" } as const
      : { "mlp.Wi": "packed_colwise", "mlp.Wo": "rowwise" } as const;
    super(device, config, hfConfig, {
      hfClasses: { prefix: "ModernBertDecoder", block: "ModernBertDecoderLayer" },
      tensorPlan: { blocks: { ...attentionPlan(config, PLAN_NAMES), ...mlpPlan } },
      embedNorm: norm(),
      embedDropout,
      layers: blocksOf(config, (i) => {
        const [rotary, window] = [rotaries[at(config.layerTypes, i, "layer type")], config.windows[i]];
        return new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...attention, rotary, window }),
          mlp: new GatedFeedForward(device, { ...config, bias: mlpBias, fused: true, dropout, names: MLP_NAMES }),
          inputLayernorm: i === 0 ? undefined : norm(),
          postAttentionLayernorm: norm(),
          attnDropout: attentionDropout,
          names: BLOCK_NAMES,
        });
      }),
      norm: norm(),
      headTransform: new PredictionHead(dense, norm(), head.activation),
      headBias: head.bias,
      names: { whole: WHOLE_NAMES, body: BODY_NAMES },
    });
  }
}
