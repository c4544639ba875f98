/**
 * Normalisation layers.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { layerNormOp, rmsNormOp } from "../ops/norm.ts";
import { applyOne } from "../tensor/apply.ts";
import { Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { Module } from "./module.ts";

const ONES = { kind: "constant", value: 1 } as const;

/** `weight * x / rms(x)` over the last dim. */
export class RMSNorm extends Module<[x: Tensor], Tensor> {
  /** [width], ones at first. */
  readonly weight: Parameter;
  readonly #eps: number;

  /** Makes the weight, without memory. */
  constructor(device: Device, width: number, eps: number = 1e-6) {
    super();
    this.weight = new Parameter(device, [width], { init: ONES });
    this.#eps = eps;
  }

  /** x [.., width] → the same shape */
  forward(x: Tensor): Tensor {
    return applyOne(rmsNormOp, [x, this.weight], this.#eps);
  }
}

/** `(x - mean) / std * weight + bias` over the last dim. */
export class LayerNorm extends Module<[x: Tensor], Tensor> {
  /** [width], ones at first. */
  readonly weight: Parameter;
  /** [width], zeros at first, if there is one. */
  readonly bias: Parameter | undefined;
  readonly #eps: number;

  /** Makes the parameters, without memory. */
  constructor(device: Device, width: number, options: { readonly eps?: number; readonly bias?: boolean } = {}) {
    super();
    this.weight = new Parameter(device, [width], { init: ONES });
    this.bias = options.bias ?? true ? new Parameter(device, [width]) : undefined;
    this.#eps = options.eps ?? 1e-5;
  }

  /** x [.., width] → the same shape */
  forward(x: Tensor): Tensor {
    return applyOne(layerNormOp, this.bias === undefined ? [x, this.weight] : [x, this.weight, this.bias], this.#eps);
  }
}
