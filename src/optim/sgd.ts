/**
 * Stochastic gradient descent with momentum, in the order of operations of PyTorch's `torch/optim/sgd.py`.
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

/** Settings of SGD; the defaults are PyTorch's. */
export interface SGDSettings extends OptimizerSettings {
  /** 1e-3 */
  learningRate: number;
  /** L2 penalty, added to the gradient: 0 */
  weightDecay: number;
  /** 0: no momentum, and no state */
  readonly momentum: number;
  /** 0 */
  readonly dampening: number;
  /** Uses Nesterov momentum: false */
  readonly nesterov: boolean;
}

/** Options of {@link SGD}. */
export type SGDOptions = Partial<SGDSettings>;

/** SGD over float32 master weights. */
export class SGD extends Optimizer<SGDSettings> {
  /**
   * Takes what PyTorch's SGD takes for what is left open.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  constructor(parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<SGDSettings>>, options: SGDOptions = {}) {
    const defaults = { learningRate: 1e-3, weightDecay: 0, momentum: 0, dampening: 0, nesterov: false };
    super(parameters, { ...defaults, ...options });
  }

  /** Refuses settings that make no sense. */
  protected override check({ learningRate, momentum, dampening, weightDecay, nesterov }: SGDSettings): void {
    const areSound = [learningRate, momentum, weightDecay].every((value) => isWithin(value, 0) && value < Infinity);
    if (!areSound || !Number.isFinite(dampening)) {
      throw new ArgumentError(
        `Cannot use learningRate ${valueText(learningRate)}, momentum ${valueText(momentum)}, dampening ${
          valueText(dampening)
        }, weightDecay ${valueText(weightDecay)}: all must be finite numbers, and none but dampening may be negative`,
      );
    }
    if (typeof nesterov !== "boolean") {
      throw new ArgumentError(`Cannot use nesterov ${valueText(nesterov)}: it must be true or false`);
    }
    if (nesterov && (momentum === 0 || dampening !== 0)) {
      throw new ArgumentError("Cannot use nesterov without momentum, or with dampening");
    }
  }

  /** Names of the settings that only it has. */
  protected override otherSettings(): { readonly momentum: true; readonly dampening: true; readonly nesterov: true } {
    return { momentum: true, dampening: true, nesterov: true };
  }

  /** PyTorch's names of the states. */
  protected override stateNames(): readonly string[] {
    return this.groups.some(({ momentum }) => momentum !== 0) ? ["momentum_buffer"] : [];
  }

  /** The last three numbers of a record. */
  protected override record({ momentum, dampening, nesterov }: SGDSettings): readonly [number, number, number] {
    return [momentum, dampening, Number(nesterov)];
  }

  /** One kernel call. */
  protected override update(kernels: Kernels, args: UpdateArgs, state: (name: string) => DevicePtr): void {
    kernels.sgd({ ...args, momentumBuffer: this.stateNames().length > 0 ? state("momentum_buffer") : undefined });
  }
}
