/**
 * Losses of answers with labels, as functions of two numbers: the log-probabilities of an answer by the model and by the reference, and the
 * distance of both that is estimated from answers to other prompts. Each gives its slope too.
 *
 * Names, and the meaning of β and of both weights, are those of TRL's `KTOTrainer`.
 *
 * @module
 */
import type { PortableMath } from "../device/device.ts";
import { sigmoidOf } from "./preference_loss.ts";

/**
 * Names of losses of an answer with a label:
 * - `kto`: Kahneman-Tversky optimization (Ethayarajh et al. 2024);
 * - `apo_zero_unpaired`: anchored preference optimization (D'Oosterlinck et al. 2024), which estimates no distance.
 */
export const LABELED_LOSSES = ["kto", "apo_zero_unpaired"] as const;
/** One of {@link LABELED_LOSSES}. */
export type LabeledLossName = typeof LABELED_LOSSES[number];

/** The loss of answers with labels, and its numbers. */
export interface LabeledLossSettings {
  readonly lossType: LabeledLossName;
  /** Weight of the distance from the reference, above 0. */
  readonly beta: number;
  /** Weight of the losses of desirable answers. */
  readonly desirableWeight: number;
  /** Weight of the losses of the others. */
  readonly undesirableWeight: number;
}

/** True for the loss of answers with labels. */
export function isLabeledLoss(settings: { readonly lossType: string }): settings is LabeledLossSettings {
  return LABELED_LOSSES.some((name) => name === settings.lossType);
}

/** True if a loss compares answers with the distance of model and reference. */
export function estimatesDistance({ lossType }: Pick<LabeledLossSettings, "lossType">): boolean {
  return lossType === "kto";
}

/** An answer with a label. */
export interface LabeledAnswer {
  /** Logarithm of its probability by the model, in nats: a sum over its tokens. */
  readonly logProb: number;
  /** Likewise by the reference. */
  readonly reference: number;
  readonly isDesirable: boolean;
}

/**
 * The loss of an answer, in float64, and its slope along the log-probability by the model.
 *
 * @param distance of model and reference, in nats; 0 for a loss that estimates none
 */
export function labeledLoss(
  { beta, desirableWeight, undesirableWeight }: LabeledLossSettings,
  { logProb, reference, isDesirable }: LabeledAnswer,
  distance: number,
  math: PortableMath,
): { readonly loss: number; readonly slope: number } {
  const sign = isDesirable ? 1 : -1;
  const weight = isDesirable ? desirableWeight : undesirableWeight;
  // 1 − σ(x) = σ(−x), of which no digit is lost.
  const worth = sigmoidOf(sign * beta * (logProb - reference - distance), math);
  const rest = sigmoidOf(-sign * beta * (logProb - reference - distance), math);
  return { loss: weight * rest, slope: -sign * weight * beta * worth * rest };
}
