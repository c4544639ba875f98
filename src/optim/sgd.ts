/**
 * Stochastic gradient descent with momentum, in the order of operations of PyTorch's `torch/optim/sgd.py`.
 *
 * @module
 */
import { type DevicePtr, NO_PTR } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { Optimizer, type ParamGroupOptions, type RunState } from "./optimizer.ts";

/** Hyper-parameters of SGD. */
export interface SGDOptions {
  /** 1e-3 */
  readonly learningRate?: number;
  /** 0: no momentum, and no state */
  readonly momentum?: number;
  /** 0 */
  readonly dampening?: number;
  /** L2 penalty, added to the gradient: 0 */
  readonly weightDecay?: number;
  /** Whether the gradient looks ahead along the momentum. */
  readonly nesterov?: boolean;
}

/** SGD over float32 master weights. */
export class SGD extends Optimizer {
  readonly #momentum: number;
  readonly #dampening: number;
  readonly #nesterov: boolean;

  /** @throws {ArgumentError} if a hyper-parameter is out of range */
  constructor(parameters: Iterable<Parameter> | readonly ParamGroupOptions[], options: SGDOptions = {}) {
    const { learningRate = 1e-3, momentum = 0, dampening = 0, weightDecay = 0, nesterov = false } = options;
    if (!(learningRate >= 0 && momentum >= 0 && weightDecay >= 0)) {
      throw new ArgumentError(
        `Cannot use learningRate ${learningRate}, momentum ${momentum}, weightDecay ${weightDecay}: none may be negative`,
      );
    }
    if (nesterov && (momentum === 0 || dampening !== 0)) {
      throw new ArgumentError("Cannot use nesterov without momentum, or with dampening");
    }
    super(parameters, momentum === 0 ? [] : ["momentum_buffer"], { learningRate, weightDecay });
    this.#momentum = momentum;
    this.#dampening = dampening;
    this.#nesterov = nesterov;
  }

  protected override update({ run, states }: RunState, ranges: DevicePtr, numRanges: number, step: number): void {
    const buffer = states[0]?.ptr ?? NO_PTR;
    const [momentum, dampening] = [this.#momentum, this.#dampening];
    run.device.kernels.sgd(
      run.param,
      run.grad,
      buffer,
      ranges,
      numRanges,
      momentum,
      dampening,
      this.#nesterov,
      step === 1,
    );
  }
}
