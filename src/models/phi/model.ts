/**
 * Phi (Gunasekar et al. 2023; transformers `modeling_phi.py`): attention and a plain feed-forward side by side behind one
 * LayerNorm, rotary embedding on half of each head, biases everywhere, the head's too.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { type LayerContext, SelfAttention } from "../../nn/attention.ts";
import { type Dropout, dropOut, dropoutOf } from "../../nn/dropout.ts";
import { FeedForward } from "../../nn/feed_forward.ts";
import { Module } from "../../nn/module.ts";
import { LayerNorm } from "../../nn/norm.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { attentionPlan } from "../tensor_plans.ts";
import type { PhiConfig } from "./config.ts";

const ATTENTION_NAMES = { oProj: "dense", qNorm: "q_layernorm", kNorm: "k_layernorm" };

/** `y = norm(x)`, then `selfAttn(y) + mlp(y) + x`, each of the first two with dropout. */
class PhiDecoderLayer extends Module<[x: Tensor, context: LayerContext], Tensor> {
  readonly selfAttn: SelfAttention;
  readonly mlp: FeedForward;
  readonly inputLayernorm: LayerNorm;
  readonly residAttnDropout: Dropout | undefined;
  readonly residMlpDropout: Dropout | undefined;

  constructor(selfAttn: SelfAttention, mlp: FeedForward, inputLayernorm: LayerNorm, dropout: number) {
    super();
    this.selfAttn = selfAttn;
    this.mlp = mlp;
    this.inputLayernorm = inputLayernorm;
    this.residAttnDropout = dropoutOf(dropout);
    this.residMlpDropout = dropoutOf(dropout);
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): Tensor {
    const normed = this.inputLayernorm.call(x);
    const attended = dropOut(this.residAttnDropout, this.selfAttn.call(normed, context), context);
    return attended.add(dropOut(this.residMlpDropout, this.mlp.call(normed, context), context)).add(x);
  }
}

/** Phi with a language-model head. */
export class PhiForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: PhiConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, layerNormEps: eps } = config;
    const norm = (width: number = hiddenSize): LayerNorm => new LayerNorm(device, width, { eps });
    const rotary = new RotaryTables(device, config.rope);
    const qkNorm = config.qkLayernorm ? { qkNorm: { over: "head", make: norm } as const } : {};
    const attention = { ...config, ...qkNorm, rotary, qkvBias: true, outBias: true, names: ATTENTION_NAMES };
    const planNames = { output: "dense", norms: config.qkLayernorm ? ["q_layernorm", "k_layernorm"] : [] };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Phi" },
      tensorPlan: { blocks: { ...attentionPlan(config, planNames), "mlp.fc1": "colwise", "mlp.fc2": "rowwise" } },
      layers: blocksOf(config, () =>
        new PhiDecoderLayer(
          new SelfAttention(device, attention),
          new FeedForward(device, { ...config, bias: true }),
          norm(),
          config.residDropout,
        )),
      norm: norm(),
      embedDropout: config.embedDropout,
      headBias: true,
      names: { body: { norm: "final_layernorm" } },
    });
  }
}
