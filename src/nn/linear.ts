/**
 * The linear layer.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { linearOp, type WeightLayout } from "../ops/matmul.ts";
import { applyOne } from "../tensor/apply.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { RandomContext } from "./dropout.ts";
import { type HookHandle, Module } from "./module.ts";

/** Options of a linear layer. */
export interface LinearOptions {
  /** True if the layer adds a bias. @default true */
  readonly bias?: boolean;
  /**
   * Layout of the weight: `outIn` is [outFeatures, inFeatures]; `inOut` is [inFeatures, outFeatures], as in transformers'
   * `Conv1D`. @default `outIn`
   */
  readonly layout?: WeightLayout;
  /** Initial values of the weight. @default PyTorch's uniform in ±1/√inFeatures */
  readonly init?: Init;
}

/** The steps at the ends of a layer whose weight is divided among ranks. */
export interface LinearEnds {
  /** Makes of the input what the layer computes with. @default the input itself */
  readonly enter?: (x: Tensor) => Tensor;
  /** Makes of the product, without the bias, what the layer gives. @default the product itself */
  readonly leave?: (y: Tensor) => Tensor;
}

/** `y = x Wᵀ + b`, weight [outFeatures, inFeatures]; or `y = x W + b`, weight [inFeatures, outFeatures]. */
export class Linear extends Module<[x: Tensor, context?: RandomContext], Tensor> {
  /** [outFeatures, inFeatures], or the other way round. */
  readonly weight: Parameter;
  /** [outFeatures], if there is one. */
  readonly bias: Parameter | undefined;
  /** The layout of the weight in memory. */
  readonly layout: WeightLayout;
  #ends: LinearEnds = {};

  /** The weight is made here, or given when it is tied to another one. */
  constructor(device: Device, inFeatures: number, outFeatures: number, options: LinearOptions = {}, tied?: Parameter) {
    super();
    const bound = 1 / Math.sqrt(inFeatures);
    const uniform: Init = { kind: "uniform", low: -bound, high: bound };
    this.layout = options.layout ?? "outIn";
    const shape = this.layout === "outIn" ? [outFeatures, inFeatures] : [inFeatures, outFeatures];
    this.weight = tied ?? new Parameter(device, shape, { init: options.init ?? uniform });
    const biasInit: Init = options.init === undefined ? uniform : { kind: "constant", value: 0 };
    this.bias = options.bias ?? true ? new Parameter(device, [outFeatures], { init: biasInit }) : undefined;
  }

  /**
   * x [.., inFeatures] → [.., outFeatures]
   *
   * @param _context for the dropout of an adapter of the layer
   */
  forward(x: Tensor, _context?: RandomContext): Tensor {
    const { enter, leave } = this.#ends;
    const input = enter === undefined ? x : enter(x);
    const { weight, bias } = this;
    if (leave !== undefined) {
      const sum = leave(applyOne(linearOp, [input, weight], this.layout));
      return bias === undefined ? sum : sum.add(bias);
    }
    return applyOne(linearOp, bias === undefined ? [input, weight] : [input, weight, bias], this.layout);
  }

  /** The dim of the weight that counts outputs. */
  get outDim(): 0 | 1 {
    return this.layout === "outIn" ? 0 : 1;
  }

  /** Has input and product pass through functions. Used by tensor parallelism. @returns ends that */
  setEnds(ends: LinearEnds): HookHandle {
    this.#ends = ends;
    return () => void (this.#ends = {});
  }
}
