/**
 * Stochastic gradient descent with momentum, in the order of operations of PyTorch's `torch/optim/sgd.py`.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { isWithin } from "../held.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { valueText } from "../words.ts";
import type { OptimizerSettings, ParamGroupOptions } from "./groups.ts";
import { Optimizer } from "./optimizer.ts";
import type { UpdateRule } from "./rule.ts";

/** Settings of SGD; the defaults are PyTorch's. */
export interface SGDSettings extends OptimizerSettings {
  /** Step size. @default 1e-3 */
  learningRate: number;
  /** L2 penalty, added to the gradient. @default 0 */
  weightDecay: number;
  /** Decay of the momentum; 0 is no momentum, and no state. @default 0 */
  readonly momentum: number;
  /** Share of the gradient that the momentum does not take. @default 0 */
  readonly dampening: number;
  /** Uses Nesterov momentum. @default false */
  readonly nesterov: boolean;
}

/** Options of {@link SGD}. */
export type SGDOptions = Partial<SGDSettings>;

const MOMENTUM = "momentum_buffer";

/** The update, with a state if any group has momentum. */
function ruleWith(states: UpdateRule<SGDSettings>["states"]): UpdateRule<SGDSettings> {
  return {
    states,
    record: ({ weightDecay, momentum, dampening, nesterov }, learningRate) => {
      return [learningRate, weightDecay, momentum, dampening, Number(nesterov)];
    },
    prepare: ({ device: { kernels }, args, state }) => () =>
      kernels.sgd({ ...args, momentumBuffer: states.length > 0 ? state(MOMENTUM) : undefined }),
  };
}

const [PLAIN, WITH_MOMENTUM] = [ruleWith([]), ruleWith([{ name: MOMENTUM }])];

/** SGD over float32 master weights. */
export class SGD extends Optimizer<SGDSettings> {
  /**
   * Omitted options have the defaults of PyTorch's SGD.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  constructor(parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<SGDSettings>>, options: SGDOptions = {}) {
    const defaults = { learningRate: 1e-3, weightDecay: 0, momentum: 0, dampening: 0, nesterov: false };
    super(parameters, defaults, options);
  }

  /** Refuses settings that are out of range. */
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

  /** Names of the settings that only SGD has. */
  protected override otherSettings(): { readonly momentum: true; readonly dampening: true; readonly nesterov: true } {
    return { momentum: true, dampening: true, nesterov: true };
  }

  /** One rule for all parameters. */
  protected override ruleOf(): UpdateRule<SGDSettings> {
    return this.groups.some(({ momentum }) => momentum !== 0) ? WITH_MOMENTUM : PLAIN;
  }
}
