/**
 * Normalisation layers.
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import type { Device } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import { layerNormOp, type RmsNormAttrs, rmsNormOp } from "../ops/norm.ts";
import { applyOne } from "../tensor/apply.ts";
import { Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { valueText } from "../words.ts";
import { swiglu } from "./functional.ts";
import { type HookHandle, Module } from "./module.ts";

/** Refuses what is no summand of a variance. */
function requireEps(what: string, eps: unknown): void {
  if (typeof eps === "number" && Number.isFinite(eps) && eps >= 0) return;
  throw new ArgumentError(`Cannot make ${what} with eps ${valueText(eps)}: expected a number of 0 or more`);
}

const ONES = { kind: "constant", value: 1 } as const;

/** Options of an RMSNorm. */
export interface RMSNormOptions {
  /** True if the factor is 1 plus the weight, which is initially zeros. @default false */
  readonly zeroCentered?: boolean;
}

/** A norm whose parameters may pass through a function before it computes with them. */
export abstract class SharedNorm extends Module<[x: Tensor], Tensor> {
  #enter: ((parameter: Tensor) => Tensor) | undefined;

  /**
   * Has parameters pass through a function before the norm computes with them. Used by tensor parallelism where ranks norm
   * different rows.
   *
   * @returns ends that
   */
  shareParameters(enter: (parameter: Tensor) => Tensor): HookHandle {
    this.#enter = enter;
    return () => void (this.#enter = undefined);
  }

  /** Parameters as the norm computes with them. */
  protected entered(...parameters: readonly Parameter[]): readonly Tensor[] {
    const enter = this.#enter;
    return enter === undefined ? parameters : parameters.map((parameter) => enter(parameter));
  }
}

/** `weight * x / rms(x)` over the last dim. */
export class RMSNorm extends SharedNorm {
  /** [width], ones at first. */
  readonly weight: Parameter;
  readonly #attrs: RmsNormAttrs;

  /** Makes the weight, without memory. */
  constructor(device: Device, width: number, eps: number = 1e-6, options: RMSNormOptions = {}) {
    super();
    requireKnownKeys("make an RMSNorm", options, { zeroCentered: true });
    const { zeroCentered = false } = options;
    requireEps("an RMSNorm", eps);
    this.weight = new Parameter(device, [width], zeroCentered ? {} : { init: ONES });
    this.#attrs = { eps, zeroCentered };
  }

  /** x [.., width] → the same shape */
  forward(x: Tensor): Tensor {
    return applyOne(rmsNormOp, [x, ...this.entered(this.weight)], this.#attrs);
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
    requireEps("a GatedRMSNorm", eps);
    this.weight = new Parameter(device, [width], { init: ONES });
    this.#eps = eps;
  }

  /** x and gate [.., width] → the same shape */
  forward(x: Tensor, gate: Tensor): Tensor {
    return swiglu(gate, applyOne(rmsNormOp, [x, this.weight], { eps: this.#eps, zeroCentered: false }));
  }
}

/** `(x - mean) / std * weight + bias` over the last dim. */
export class LayerNorm extends SharedNorm {
  /** [width], ones at first. */
  readonly weight: Parameter;
  /** [width], zeros at first, if there is one. */
  readonly bias: Parameter | undefined;
  readonly #eps: number;

  /** Makes the parameters, without memory. */
  constructor(device: Device, width: number, options: { readonly eps?: number; readonly bias?: boolean } = {}) {
    super();
    requireKnownKeys("make a LayerNorm", options, { eps: true, bias: true });
    this.weight = new Parameter(device, [width], { init: ONES });
    this.bias = options.bias ?? true ? new Parameter(device, [width]) : undefined;
    this.#eps = options.eps ?? 1e-5;
    requireEps("a LayerNorm", this.#eps);
  }

  /** x [.., width] → the same shape */
  forward(x: Tensor): Tensor {
    const { weight, bias } = this;
    return applyOne(layerNormOp, [x, ...this.entered(...bias === undefined ? [weight] : [weight, bias])], this.#eps);
  }
}
