/**
 * Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"), in the order of operations of bitsandbytes' `Lion`.
 *
 * @module
 */
import type { Parameter } from "../tensor/parameter.ts";
import { requireAdamW } from "./adamw.ts";
import type { OptimizerSettings, ParamGroupOptions } from "./groups.ts";
import { Optimizer } from "./optimizer.ts";
import type { UpdateRule } from "./rule.ts";

/** Settings of Lion. Defaults as in the paper. */
export interface LionSettings extends OptimizerSettings {
  /** Step size. @default 1e-4 */
  learningRate: number;
  /** Decoupled weight decay. @default 0 */
  weightDecay: number;
  /** The share of the momentum in the direction of a step, and its decay. @default [0.9, 0.99] */
  readonly betas: readonly [number, number];
}

/** Options of {@link Lion}. */
export type LionOptions = Partial<LionSettings>;

const RULE: UpdateRule<LionSettings> = {
  states: [{ name: "exp_avg" }],
  record: ({ weightDecay, betas: [beta1, beta2] }, learningRate) => [learningRate, weightDecay, beta1, beta2, 0],
  prepare: ({ device: { kernels }, args, state }) => () => kernels.lion({ ...args, expAvg: state("exp_avg") }),
};

/**
 * Lion over float32 master weights: every element moves by the learning rate, in the direction of an average of gradients.
 *
 * @example
 * ```ts
 * import { Lion } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { Linear } from "fullyshard/nn";
 * const layer = new Linear(await openDevice("cpu"), 4, 4);
 * new Lion(layer.parameters(), { learningRate: 1e-4, weightDecay: 0.1 });
 * ```
 */
export class Lion extends Optimizer<LionSettings> {
  /**
   * Omitted options have the paper's defaults.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  constructor(parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<LionSettings>>, options: LionOptions = {}) {
    super(parameters, { learningRate: 1e-4, betas: [0.9, 0.99], weightDecay: 0 }, options);
  }

  /** Refuses settings that make no sense. */
  protected override check(settings: LionSettings): void {
    requireAdamW({ ...settings, eps: 0 });
  }

  /** Names of the settings that only it has. */
  protected override otherSettings(): { readonly betas: true } {
    return { betas: true };
  }

  /** One rule for all parameters. */
  protected override ruleOf(): UpdateRule<LionSettings> {
    return RULE;
  }
}
