/**
 * Metrics of answers with labels, by the names that TRL's `KTOTrainer` logs them under.
 *
 * @module
 */
import { at } from "../at.ts";
import type { PortableMath } from "../device/device.ts";
import type { AnswerTable } from "./answers.ts";
import { estimatesDistance, type LabeledAnswer, labeledLoss, type LabeledLossSettings } from "./labeled_loss.ts";
import type { PreferenceFigures } from "./preference_figures.ts";

/** Names of metrics of answers with labels that pairs have too. */
const SHARED = ["rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected"] as const;

/** Metrics of answers with labels; those of desirable ones are absent where there are none, and likewise of the others. */
export interface LabeledFigures
  extends Partial<Omit<PreferenceFigures, "rewards/accuracies" | "nll_loss" | "log_odds_ratio" | "log_odds_chosen">> {
  /** The distance of model and reference, in nats, estimated from answers to other prompts; 0 of a loss that estimates none. */
  readonly kl: number;
}

/** Names of {@link LabeledFigures}. */
export const LABELED_FIGURES: readonly (keyof LabeledFigures)[] = [...SHARED, "kl"];

/** The mean log-ratio of answers to other prompts, at least 0. @param ratios in one order on every rank */
export function distanceOf(ratios: readonly number[]): number {
  return ratios.length === 0 ? 0 : Math.max(0, ratios.reduce((sum, ratio) => sum + ratio, 0) / ratios.length);
}

/** The mean loss of answers, and their figures. */
export function labeledFiguresOf(
  answers: readonly LabeledAnswer[],
  distance: number,
  settings: LabeledLossSettings,
  math: PortableMath,
): { readonly loss: number; readonly figures: LabeledFigures } {
  const mean = (list: readonly LabeledAnswer[], of: (answer: LabeledAnswer) => number): number =>
    list.reduce((sum, answer) => sum + of(answer), 0) / list.length;
  const reward = ({ logProb, reference }: LabeledAnswer): number => settings.beta * (logProb - reference);
  const chosen = answers.filter(({ isDesirable }) => isDesirable);
  const rejected = answers.filter(({ isDesirable }) => !isDesirable);
  const rewards = { chosen: mean(chosen, reward), rejected: mean(rejected, reward) };
  return {
    loss: mean(answers, (answer) => labeledLoss(settings, answer, distance, math).loss),
    figures: {
      ...chosen.length === 0
        ? {}
        : { "rewards/chosen": rewards.chosen, "logps/chosen": mean(chosen, ({ logProb }) => logProb) },
      ...rejected.length === 0
        ? {}
        : { "rewards/rejected": rewards.rejected, "logps/rejected": mean(rejected, ({ logProb }) => logProb) },
      ...chosen.length === 0 || rejected.length === 0 ? {} : { "rewards/margins": rewards.chosen - rewards.rejected },
      kl: distance,
    },
  };
}

/** The mean loss of all answers of two tables of the same rows, by the model and by the reference, and their figures. */
export function labeledFiguresOfTables(
  model: AnswerTable,
  reference: AnswerTable,
  settings: LabeledLossSettings,
  math: PortableMath,
): ReturnType<typeof labeledFiguresOf> {
  const count = model.logProbs.length / 2;
  const valueOf = (table: AnswerTable, row: number): number => at(table.logProbs, row, "row");
  const answers = Array.from({ length: count }, (_, i): LabeledAnswer => ({
    logProb: valueOf(model, 2 * i),
    reference: valueOf(reference, 2 * i),
    isDesirable: at(model.desirable, i, "label") === 1,
  }));
  const ratios = Array.from({ length: count }, (_, i) => valueOf(model, 2 * i + 1) - valueOf(reference, 2 * i + 1));
  const distance = estimatesDistance(settings) ? distanceOf(ratios) : 0;
  return labeledFiguresOf(answers, distance, settings, math);
}
