/**
 * Olmo 3 (Ai2 2025; transformers `modeling_olmo3.py`): norms behind attention and feed-forward instead of before them, norms of
 * queries and keys over all heads together, three layers with a window to one without, each type with its own rotation.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Device } from "../../device/device.ts";
import { type LayerContext, SelfAttention } from "../../nn/attention.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { Module } from "../../nn/module.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import type { Tensor } from "../../tensor/tensor.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import type { Olmo3Config } from "./config.ts";

/** `y = x + norm(selfAttn(x))`, then `y + norm(mlp(y))`. */
class Olmo3DecoderLayer extends Module<[x: Tensor, context: LayerContext], Tensor> {
  readonly selfAttn: SelfAttention;
  readonly mlp: GatedFeedForward;
  readonly postAttentionLayernorm: RMSNorm;
  readonly postFeedforwardLayernorm: RMSNorm;

  constructor(selfAttn: SelfAttention, mlp: GatedFeedForward, norm: () => RMSNorm) {
    super();
    this.selfAttn = selfAttn;
    this.mlp = mlp;
    this.postAttentionLayernorm = norm();
    this.postFeedforwardLayernorm = norm();
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): Tensor {
    const attended = x.add(this.postAttentionLayernorm.call(this.selfAttn.call(x, context)));
    return attended.add(this.postFeedforwardLayernorm.call(this.mlp.call(attended)));
  }
}

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
      layers: blocksOf(config, (i) => {
        const [rotary, window] = [rotaries[at(config.layerTypes, i, "layer type")], config.windows[i]];
        const options = { ...config, rotary, window, qkNorm, qkvBias: bias, outBias: bias };
        return new Olmo3DecoderLayer(new SelfAttention(device, options), new GatedFeedForward(device, config), norm);
      }),
      norm: norm(),
    });
  }
}
