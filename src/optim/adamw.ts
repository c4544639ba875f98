/**
 * AdamW (Loshchilov & Hutter 2019), in the order of operations of PyTorch's `torch/optim/adamw.py`.
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

/** Settings of AdamW; the defaults are PyTorch's. */
export interface AdamWSettings extends OptimizerSettings {
  /** Step size. @default 1e-3 */
  learningRate: number;
  /** Decoupled weight decay. @default 0.01 */
  weightDecay: number;
  /** Decay of the first and second moment. @default [0.9, 0.999] */
  readonly betas: readonly [number, number];
  /** Added to the root of the second moment. @default 1e-8 */
  readonly eps: number;
}

/** Options of {@link AdamW}. */
export type AdamWOptions = Partial<AdamWSettings>;

/** The settings that the update reads. */
export type AdamWUpdateSettings = OptimizerSettings & Pick<AdamWSettings, "betas" | "eps">;

/** The update of AdamW, for any optimizer whose groups have its settings: one kernel call. */
export function adamwRule<S extends AdamWUpdateSettings>(): UpdateRule<S> {
  return {
    states: [{ name: "exp_avg" }, { name: "exp_avg_sq" }],
    record: (
      { weightDecay, betas: [beta1, beta2], eps },
      learningRate,
    ) => [learningRate, weightDecay, beta1, beta2, eps],
    prepare: ({ device: { kernels }, args, state }) => () =>
      kernels.adamw({ ...args, expAvg: state("exp_avg"), expAvgSq: state("exp_avg_sq") }),
  };
}

/** @throws {ArgumentError} if a setting of AdamW is out of range */
export function requireAdamW({ learningRate, betas, eps, weightDecay }: AdamWUpdateSettings): void {
  const areBetas = Array.isArray(betas) && betas.length === 2 && betas.every((beta) => isWithin(beta, 0) && beta < 1);
  if (areBetas && [learningRate, eps, weightDecay].every((value) => isWithin(value, 0) && value < Infinity)) return;
  const shownBetas = Array.isArray(betas) ? `[${betas.map(valueText).join(", ")}]` : valueText(betas);
  throw new ArgumentError(
    `Cannot use learningRate ${valueText(learningRate)}, betas ${shownBetas}, eps ${valueText(eps)}, weightDecay ${
      valueText(weightDecay)
    }: all must be finite numbers, none may be negative, and the two betas must be below 1`,
  );
}

const RULE: UpdateRule<AdamWSettings> = adamwRule();

/** AdamW over float32 master weights. */
export class AdamW extends Optimizer<AdamWSettings> {
  /**
   * Omitted options have the defaults of PyTorch's AdamW.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  constructor(
    parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<AdamWSettings>>,
    options: AdamWOptions = {},
  ) {
    super(parameters, { learningRate: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.01 }, options);
  }

  /** Refuses settings that make no sense. */
  protected override check(settings: AdamWSettings): void {
    requireAdamW(settings);
  }

  /** Names of the settings that only AdamW has. */
  protected override otherSettings(): { readonly betas: true; readonly eps: true } {
    return { betas: true, eps: true };
  }

  /** One rule for all parameters. */
  protected override ruleOf(): UpdateRule<AdamWSettings> {
    return RULE;
  }
}
