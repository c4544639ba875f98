/**
 * Keys of a run's optimizer and schedule.
 *
 * @module
 */
import * as z from "zod";
import { type Section, section } from "../config/section.ts";
import { ADJUST_LR, type AdjustLr } from "../optim/muon.ts";
import { ALL_OPTIMIZER_NAMES } from "../optim/registry.ts";
import { count } from "./config_values.ts";

/** Parameters that the weight decay acts on. */
const DECAY_ON = ["all", "weights"] as const;

/**
 * Optimizer and schedule, beside learning rate, decay and betas.
 *
 * @internal
 */
export interface OptimizerConfig {
  readonly optimizer: string;
  readonly momentum?: number | undefined;
  readonly adjustLr: AdjustLr;
  readonly decayOn: typeof DECAY_ON[number];
  readonly learningRateFactors?: Readonly<Record<string, number>> | undefined;
  readonly minLrRate: number;
  readonly scheduleCycles: number;
  readonly schedulePower: number;
  readonly decaySteps?: number | undefined;
  readonly emaDecay?: number | undefined;
  readonly emaStart?: number | undefined;
}

/** Optimizer keys. */
export const optimizerSection: Section<OptimizerConfig> = section(
  "optimizer",
  z.strictObject({
    optimizer: z.enum(ALL_OPTIMIZER_NAMES).default("adamw").describe(
      "Update of weights: adamw; adamw8bit: AdamW with states in 8 bits; lion; muon: for matrices within layers, with AdamW for " +
        "others; adafactor: PyTorch's; sgd; or a name of Transformers such as adamw_torch",
    ).meta({ shown: "name", otherNames: ["optim", "optimizer-name", "optimizer-type"] }),
    momentum: z.number().min(0).lt(1).optional().describe(
      "Decay of the momentum of muon (default: 0.95) and sgd (default: 0.9)",
    ),
    adjustLr: z.enum(ADJUST_LR).default("match_rms_adamw").describe(
      "Muon: how the learning rate is scaled by a matrix's size; match_rms_adamw lets AdamW's rates be used",
    ).meta({ otherNames: ["adjust-lr-fn"] }),
    decayOn: z.enum(DECAY_ON).default("all").describe(
      "Parameters that weightDecay draws to zero: all, or weights: all but biases and weights of norms, as in Transformers",
    ).meta({ otherNames: ["no-decay", "decay-parameters"] }),
    learningRateFactors: z.record(z.string(), z.number().nonnegative()).optional().describe(
      "Learning rate multipliers as JSON: regular expression on parameter names → factor; the first match counts",
    ).meta({ otherNames: ["layer-wise-lr", "layerwise-lr-decay"] }),
    minLrRate: z.number().min(0).max(1).default(0).describe("Final learning rate as a fraction of the peak").meta({
      otherNames: ["min-lr", "min-lr-ratio", "lr-end"],
    }),
    scheduleCycles: z.number().positive().default(1).describe(
      "With schedule cosine_with_restarts: number of cosine cycles",
    )
      .meta({
        otherNames: ["num-cycles"],
      }),
    schedulePower: z.number().nonnegative().default(1).describe("With schedule polynomial: its power").meta({
      otherNames: ["power"],
    }),
    decaySteps: count.optional().describe(
      "With schedule warmup_stable_decay: decay steps (default: a tenth of the steps)",
    ).meta({ otherNames: ["num-decay-steps"] }),
    emaDecay: z.number().min(0).lt(1).optional().describe(
      "Decay of an exponential moving average of the trained weights; evaluations and the saved model use it " +
        "(default: none)",
    ).meta({ otherNames: ["ema", "ema-rate", "use-ema", "model-ema-decay"] }),
    emaStart: count.optional().describe(
      "With emaDecay: steps before the average begins; until then it is a copy of the weights (default: 0)",
    ).meta({ otherNames: ["ema-start-step", "ema-warmup-steps"] }),
  }),
);
