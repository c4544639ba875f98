/**
 * Feed-forward layers, plain and gated.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import type { WeightLayout } from "../ops/matmul.ts";
import type { Init } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { type Dropout, dropOut, dropoutOf, type RandomContext } from "./dropout.ts";
import { swiglu } from "./functional.ts";
import { Linear } from "./linear.ts";
import { type FieldNames, RenamedModule } from "./renamed.ts";

/** Functions between the layers of a feed-forward. */
const ACTIVATIONS = {
  silu: (x: Tensor): Tensor => x.silu(),
  gelu: (x: Tensor): Tensor => x.gelu(),
  geluTanh: (x: Tensor): Tensor => x.gelu("tanh"),
  relu: (x: Tensor): Tensor => x.relu(),
  tanh: (x: Tensor): Tensor => x.tanh(),
  sigmoid: (x: Tensor): Tensor => x.sigmoid(),
};

/** Name of a function between the layers of a feed-forward. */
export type Activation = keyof typeof ACTIVATIONS;

/** The function of that name, of each element. */
export function activate(name: Activation, x: Tensor): Tensor {
  return ACTIVATIONS[name](x);
}

/** `activation(gate) * up` */
export function gate(activation: Activation, gates: Tensor, ups: Tensor): Tensor {
  return activation === "silu" ? swiglu(gates, ups) : activate(activation, gates).mul(ups);
}

/** Sizes and options of a feed-forward layer. */
export interface FeedForwardOptions {
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly activation: Activation;
  /** Initialization of weights; biases are zeros. */
  readonly init: Init;
  /** Initialization of the output's weight. @default `init` */
  readonly outInit?: Init;
  /** True if all projections have a bias. @default false */
  readonly bias?: boolean;
  /** Layout of the weights. @default `outIn` */
  readonly layout?: WeightLayout;
  /** Names of the fields in FQNs. */
  readonly names?: FieldNames;
}

/** `fc2(activation(fc1(x)))` */
export class FeedForward extends RenamedModule<[x: Tensor, context?: RandomContext], Tensor> {
  readonly fc1: Linear;
  readonly fc2: Linear;
  readonly #activation: Activation;

  /** Makes the projections, without memory. */
  constructor(device: Device, options: FeedForwardOptions) {
    super(options.names);
    const { hiddenSize, intermediateSize, init, outInit = init, bias = false, layout = "outIn", activation } = options;
    this.fc1 = new Linear(device, hiddenSize, intermediateSize, { bias, init, layout });
    this.fc2 = new Linear(device, intermediateSize, hiddenSize, { bias, init: outInit, layout });
    this.#activation = activation;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context?: RandomContext): Tensor {
    return this.fc2.call(activate(this.#activation, this.fc1.call(x, context)), context);
  }
}

/** `downProj(activation(gateProj(x)) * upProj(x))`: SwiGLU (Shazeer 2020) and its relatives. */
export class GatedFeedForward extends RenamedModule<[x: Tensor, context?: RandomContext], Tensor> {
  readonly gateUpProj: Linear | undefined;
  readonly gateProj: Linear | undefined;
  readonly upProj: Linear | undefined;
  readonly downProj: Linear;
  readonly dropout: Dropout | undefined;
  readonly #activation: Activation;
  readonly #project: (x: Tensor, context: RandomContext | undefined) => readonly [gate: Tensor, up: Tensor];

  /**
   * Makes the projections, without memory.
   *
   * @param options `fused`: whether one projection `gateUpProj` gives gate and up, in this order; by default two do; `dropout`:
   * probability that an element before the last projection becomes zero in training, by default 0
   */
  constructor(device: Device, options: FeedForwardOptions & { readonly fused?: boolean; readonly dropout?: number }) {
    super(options.names);
    const { hiddenSize, intermediateSize, init, outInit = init, bias = false, layout = "outIn", activation } = options;
    const projection = (width: number, packs: number = 1): Linear =>
      new Linear(device, hiddenSize, width, { bias, init, layout, packs });
    if (options.fused ?? false) {
      const both = this.gateUpProj = projection(2 * intermediateSize, 2);
      this.#project = (x, context) => {
        const parts = both.call(x, context).chunk(2, -1);
        return [at(parts, 0, "part"), at(parts, 1, "part")];
      };
    } else {
      const [gate, up] = [projection(intermediateSize), projection(intermediateSize)];
      [this.gateProj, this.upProj] = [gate, up];
      this.#project = (x, context) => [gate.call(x, context), up.call(x, context)];
    }
    this.downProj = new Linear(device, intermediateSize, hiddenSize, { bias, init: outInit, layout });
    this.dropout = dropoutOf(options.dropout);
    this.#activation = activation;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context?: RandomContext): Tensor {
    const inner = gate(this.#activation, ...this.#project(x, context));
    return this.downProj.call(dropOut(this.dropout, inner, context), context);
  }
}
