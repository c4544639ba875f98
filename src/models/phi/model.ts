/**
 * Phi (Gunasekar et al. 2023; transformers `modeling_phi.py`): attention and a plain feed-forward side by side behind one
 * LayerNorm, half of each head turned, biases everywhere, the head's too.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { type LayerContext, SelfAttention } from "../../nn/attention.ts";
import { FeedForward } from "../../nn/feed_forward.ts";
import { Module } from "../../nn/module.ts";
import { LayerNorm } from "../../nn/norm.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import type { PhiConfig } from "./config.ts";

const ATTENTION_NAMES = { oProj: "dense", qNorm: "q_layernorm", kNorm: "k_layernorm" };

/** `y = norm(x)`, then `selfAttn(y) + mlp(y) + x`. */
class PhiDecoderLayer extends Module<[x: Tensor, context: LayerContext], Tensor> {
  readonly selfAttn: SelfAttention;
  readonly mlp: FeedForward;
  readonly inputLayernorm: LayerNorm;

  constructor(selfAttn: SelfAttention, mlp: FeedForward, inputLayernorm: LayerNorm) {
    super();
    this.selfAttn = selfAttn;
    this.mlp = mlp;
    this.inputLayernorm = inputLayernorm;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): Tensor {
    const normed = this.inputLayernorm.call(x);
    return this.selfAttn.call(normed, context).add(this.mlp.call(normed)).add(x);
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
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Phi" },
      layers: blocksOf(config, () =>
        new PhiDecoderLayer(
          new SelfAttention(device, attention),
          new FeedForward(device, { ...config, bias: true }),
          norm(),
        )),
      norm: norm(),
      headBias: true,
      names: { body: { norm: "final_layernorm" } },
    });
  }
}
