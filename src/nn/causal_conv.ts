/**
 * The layer of a causal depthwise convolution.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import { CacheSlot, PastRows } from "./cache.ts";
import { causalConv } from "./functional.ts";
import { Module } from "./module.ts";

/** Options of a convolution. */
export interface CausalConvOptions {
  /** Tokens that each one sees, itself included. */
  readonly width: number;
  /** Initialization of the weight; a bias is zeros. */
  readonly init: Init;
  readonly bias: boolean;
}

/** Each channel's sum of its own and its `width - 1` earlier values, times its weights, plus its bias. */
export class CausalConv extends Module<[x: Tensor, context: LayerContext], Tensor> {
  /** [channels, 1, width], as in PyTorch's `Conv1d`. */
  readonly weight: Parameter;
  /** [channels], if there is one. */
  readonly bias: Parameter | undefined;
  readonly #past = new CacheSlot((cache) => new PastRows(cache));
  readonly #width: number;

  /** Makes the parameters, without memory. */
  constructor(device: Device, channels: number, { width, init, bias }: CausalConvOptions) {
    super();
    this.weight = new Parameter(device, [channels, 1, width], { init });
    this.bias = bias ? new Parameter(device, [channels]) : undefined;
    this.#width = width;
  }

  /** x [batch, seq, channels] → the same shape */
  forward(x: Tensor, { pastKeyValues }: LayerContext): Tensor {
    const seq = at(x.shape, 1, "dim");
    const rows = pastKeyValues === undefined ? x : this.#past.of(pastKeyValues).update(x, this.#width - 1);
    const all = causalConv(rows, this.weight);
    const own = all.narrow(1, at(all.shape, 1, "dim") - seq, seq);
    return this.bias === undefined ? own : own.add(this.bias);
  }
}
