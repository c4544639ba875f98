/**
 * AdamW (Loshchilov & Hutter 2019), in the order of operations of PyTorch's `torch/optim/adamw.py`.
 *
 * @module
 */
import type { DevicePtr } from "../device/device.ts";
import type { Kernels } from "../device/kernels/table.ts";
import { ArgumentError } from "../errors.ts";
import { isWithin } from "../held.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { valueText } from "../words.ts";
import type { OptimizerSettings, ParamGroupOptions } from "./groups.ts";
import { Optimizer, type UpdateArgs } from "./optimizer.ts";

/** Settings of AdamW; the defaults are PyTorch's. */
export interface AdamWSettings extends OptimizerSettings {
  /** 1e-3 */
  learningRate: number;
  /** Decoupled weight decay: 0.01 */
  weightDecay: number;
  /** Decay of the first and second moment: [0.9, 0.999] */
  readonly betas: readonly [number, number];
  /** 1e-8 */
  readonly eps: number;
}

/** Options of {@link AdamW}. */
export type AdamWOptions = Partial<AdamWSettings>;

/** AdamW over float32 master weights. */
export class AdamW extends Optimizer<AdamWSettings> {
  /**
   * Takes what PyTorch's AdamW takes for what is left open.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  constructor(
    parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<AdamWSettings>>,
    options: AdamWOptions = {},
  ) {
    super(parameters, { learningRate: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.01, ...options });
  }

  /** Refuses settings that make no sense. */
  protected override check({ learningRate, betas, eps, weightDecay }: AdamWSettings): void {
    const areBetas = Array.isArray(betas) && betas.length === 2 && betas.every((beta) => isWithin(beta, 0) && beta < 1);
    if (areBetas && [learningRate, eps, weightDecay].every((value) => isWithin(value, 0) && value < Infinity)) return;
    const shownBetas = Array.isArray(betas) ? `[${betas.map(valueText).join(", ")}]` : valueText(betas);
    throw new ArgumentError(
      `Cannot use learningRate ${valueText(learningRate)}, betas ${shownBetas}, eps ${valueText(eps)}, weightDecay ${
        valueText(weightDecay)
      }: all must be finite numbers, none may be negative, and the two betas must be below 1`,
    );
  }

  /** Names of the settings that only it has. */
  protected override otherSettings(): { readonly betas: true; readonly eps: true } {
    return { betas: true, eps: true };
  }

  /** PyTorch's names of the states. */
  protected override stateNames(): readonly string[] {
    return ["exp_avg", "exp_avg_sq"];
  }

  /** The last three numbers of a record. */
  protected override record({ betas, eps }: AdamWSettings): readonly [number, number, number] {
    return [...betas, eps];
  }

  /** One kernel call. */
  protected override update(kernels: Kernels, args: UpdateArgs, state: (name: string) => DevicePtr): void {
    kernels.adamw({ ...args, expAvg: state("exp_avg"), expAvgSq: state("exp_avg_sq") });
  }
}
