/**
 * AdamW (Loshchilov & Hutter 2019), in the order of operations of PyTorch's `torch/optim/adamw.py`.
 *
 * @module
 */
import type { DevicePtr } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { Optimizer, type ParamGroupOptions, type RunState } from "./optimizer.ts";

/** Hyper-parameters of AdamW; the defaults are PyTorch's. */
export interface AdamWOptions {
  /** 1e-3 */
  readonly learningRate?: number;
  /** Decay of the first and second moment: [0.9, 0.999] */
  readonly betas?: readonly [number, number];
  /** 1e-8 */
  readonly eps?: number;
  /** Decoupled weight decay: 0.01 */
  readonly weightDecay?: number;
}

/** `base ** exponent` by squaring: multiplications only, so the same bits everywhere. */
function power(base: number, exponent: number): number {
  let result = 1;
  for (let square = base, n = exponent; n > 0; n = Math.floor(n / 2), square *= square) {
    if (n % 2 === 1) result *= square;
  }
  return result;
}

/** AdamW over float32 master weights. */
export class AdamW extends Optimizer {
  readonly #betas: readonly [number, number];
  readonly #eps: number;

  /** @throws {ArgumentError} if a hyper-parameter is out of range */
  constructor(parameters: Iterable<Parameter> | readonly ParamGroupOptions[], options: AdamWOptions = {}) {
    const { learningRate = 1e-3, betas = [0.9, 0.999], eps = 1e-8, weightDecay = 0.01 } = options;
    if (!(learningRate >= 0 && eps >= 0 && weightDecay >= 0 && betas.every((beta) => beta >= 0 && beta < 1))) {
      throw new ArgumentError(
        `Cannot use learningRate ${learningRate}, betas [${
          betas.join(", ")
        }], eps ${eps}, weightDecay ${weightDecay}: ` +
          "none may be negative, and betas must be below 1",
      );
    }
    super(parameters, ["exp_avg", "exp_avg_sq"], { learningRate, weightDecay });
    this.#betas = betas;
    this.#eps = eps;
  }

  protected override update({ run, states }: RunState, ranges: DevicePtr, numRanges: number, step: number): void {
    const [expAvg, expAvgSq] = states;
    if (expAvg === undefined || expAvgSq === undefined) return;
    const [beta1, beta2] = this.#betas;
    run.device.kernels.adamw(run.param, run.grad, expAvg.ptr, expAvgSq.ptr, ranges, numRanges, {
      beta1,
      beta2,
      eps: this.#eps,
      biasCorrection1: 1 - power(beta1, step),
      biasCorrection2Sqrt: Math.sqrt(1 - power(beta2, step)),
    });
  }
}
