/**
 * Stochastic gradient descent with momentum, in the order of operations of PyTorch's `torch/optim/sgd.py`.
 *
 * @module
 */
import type { DevicePtr } from "../device/device.ts";
import type { Kernels } from "../device/kernels/table.ts";
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";
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
    if (!(learningRate >= 0 && momentum >= 0 && weightDecay >= 0)) {
      throw new ArgumentError(
        `Cannot use learningRate ${learningRate}, momentum ${momentum}, weightDecay ${weightDecay}: none may be negative`,
      );
    }
    if (nesterov && (momentum === 0 || dampening !== 0)) {
      throw new ArgumentError("Cannot use nesterov without momentum, or with dampening");
    }
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
