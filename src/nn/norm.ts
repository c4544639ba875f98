/**
 * Normalisation layers.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { layerNormOp, type RmsNormAttrs, rmsNormOp } from "../ops/norm.ts";
import { applyOne } from "../tensor/apply.ts";
import { Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { swiglu } from "./functional.ts";
import { Module } from "./module.ts";

const ONES = { kind: "constant", value: 1 } as const;

/** Options of an RMSNorm. */
export interface RMSNormOptions {
  /** True if the factor is 1 plus the weight, which is initially zeros. @default false */
  readonly zeroCentered?: boolean;
}

/** `weight * x / rms(x)` over the last dim. */
export class RMSNorm extends Module<[x: Tensor], Tensor> {
  /** [width], ones at first. */
  readonly weight: Parameter;
  readonly #attrs: RmsNormAttrs;

  /** Makes the weight, without memory. */
  constructor(device: Device, width: number, eps: number = 1e-6, { zeroCentered = false }: RMSNormOptions = {}) {
    super();
    this.weight = new Parameter(device, [width], zeroCentered ? {} : { init: ONES });
    this.#attrs = { eps, zeroCentered };
  }

  /** x [.., width] → the same shape */
  forward(x: Tensor): Tensor {
    return applyOne(rmsNormOp, [x, this.weight], this.#attrs);
  }
}

/** `silu(gate) * weight * x / rms(x)` over the last dim. */
export class GatedRMSNorm extends Module<[x: Tensor, gate: Tensor], Tensor> {
  /** [width], ones at first. */
  readonly weight: Parameter;
  readonly #eps: number;

  /** Makes the weight, without memory. */
  constructor(device: Device, width: number, eps: number) {
    super();
    this.weight = new Parameter(device, [width], { init: ONES });
    this.#eps = eps;
  }

  /** x and gate [.., width] → the same shape */
  forward(x: Tensor, gate: Tensor): Tensor {
    return swiglu(gate, applyOne(rmsNormOp, [x, this.weight], { eps: this.#eps, zeroCentered: false }));
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
