/**
 * Metrics of pairs of answers, by TRL's names: means over all pairs in one order, so that they are the same bits however pairs were
 * divided.
 *
 * @module
 */
import { at } from "../at.ts";
import type { PortableMath } from "../device/device.ts";
import type { AnswerTable } from "./answers.ts";
import {
  answerFor,
  logOddsRatio,
  ODDS_RATIO,
  type PairAnswer,
  pairLoss,
  type PairLossSettings,
} from "./preference_loss.ts";

/** Metrics of pairs; rewards are β times a log-probability by the model less that by the reference. */
export interface PreferenceFigures {
  /** Mean reward of the chosen answers. */
  readonly "rewards/chosen": number;
  /** Mean reward of the rejected answers. */
  readonly "rewards/rejected": number;
  /** Share of pairs whose chosen answer has the larger reward. */
  readonly "rewards/accuracies": number;
  /** Mean of the chosen answers' rewards less those of the rejected ones. */
  readonly "rewards/margins": number;
  /** Mean log-probability of the chosen answers by the model, in nats. */
  readonly "logps/chosen": number;
  /** Mean log-probability of the rejected answers by the model, in nats. */
  readonly "logps/rejected": number;
  /** Of `orpo`: the mean loss of all tokens of the chosen samples, in nats. */
  readonly nll_loss?: number;
  /** Of `orpo`: the mean of log σ of the logarithm of the ratio of odds. */
  readonly log_odds_ratio?: number;
  /** Of `orpo`: the mean logarithm of the ratio of odds. */
  readonly log_odds_chosen?: number;
}

/** Names of the metrics of every loss. */
const PREFERENCE_FIGURES = [
  "rewards/chosen",
  "rewards/rejected",
  "rewards/accuracies",
  "rewards/margins",
  "logps/chosen",
  "logps/rejected",
] as const;

/** Names of the {@link PreferenceFigures} of a loss. */
export function figureNames({ lossType }: Pick<PairLossSettings, "lossType">): readonly (keyof PreferenceFigures)[] {
  return lossType === ODDS_RATIO
    ? [...PREFERENCE_FIGURES, "nll_loss", "log_odds_ratio", "log_odds_chosen"]
    : PREFERENCE_FIGURES;
}

/** A pair whose loss is known. */
export interface JudgedPair {
  readonly loss: number;
  readonly chosen: Pick<PairAnswer, "logProb" | "reference">;
  readonly rejected: Pick<PairAnswer, "logProb" | "reference">;
  /** The loss of all tokens of the chosen sample, where it is a part of the loss. */
  readonly textLoss: number;
  /** Their number. */
  readonly textTokens: number;
}

/** The mean loss of pairs, and their figures. */
export function figuresOf(
  pairs: readonly JudgedPair[],
  { lossType, beta }: PairLossSettings,
  math: PortableMath,
): { readonly loss: number; readonly figures: PreferenceFigures } {
  const mean = (of: (pair: JudgedPair) => number): number =>
    pairs.reduce((sum, pair) => sum + of(pair), 0) / pairs.length;
  const reward = ({ logProb, reference }: JudgedPair["chosen"]): number => beta * (logProb - reference);
  const figures = {
    "rewards/chosen": mean(({ chosen }) => reward(chosen)),
    "rewards/rejected": mean(({ rejected }) => reward(rejected)),
    "rewards/accuracies": mean(({ chosen, rejected }) => Number(reward(chosen) > reward(rejected))),
    "rewards/margins": mean(({ chosen, rejected }) => reward(chosen) - reward(rejected)),
    "logps/chosen": mean(({ chosen }) => chosen.logProb),
    "logps/rejected": mean(({ rejected }) => rejected.logProb),
  };
  const loss = mean((pair) => pair.loss);
  if (lossType !== ODDS_RATIO) return { loss, figures };
  const total = (of: (pair: JudgedPair) => number): number => pairs.reduce((sum, pair) => sum + of(pair), 0);
  const odds = {
    nll_loss: total(({ textLoss }) => textLoss) / total(({ textTokens }) => textTokens),
    log_odds_ratio: -loss / beta,
    log_odds_chosen: mean(({ chosen, rejected }) => logOddsRatio(chosen.logProb, rejected.logProb, math)),
  };
  return { loss: odds.nll_loss + loss, figures: { ...figures, ...odds } };
}

/**
 * The mean loss of all pairs of two tables of the same answers, by the model and by the reference, and their figures.
 *
 * @param reference undefined for a loss without one
 */
export function figuresOfTables(
  model: AnswerTable,
  reference: AnswerTable | undefined,
  settings: PairLossSettings,
  math: PortableMath,
): ReturnType<typeof figuresOf> {
  const answerOf = (row: number): PairAnswer =>
    answerFor(settings, {
      logProb: at(model.logProbs, row, "row"),
      reference: reference === undefined ? 0 : at(reference.logProbs, row, "row"),
      tokens: at(model.tokens, row, "row"),
    });
  const pairs = Array.from({ length: model.logProbs.length / 2 }, (_, pair): JudgedPair => {
    const [chosen, rejected] = [answerOf(2 * pair), answerOf(2 * pair + 1)];
    return {
      ...{ loss: pairLoss(settings, chosen, rejected, math).loss, chosen, rejected },
      textLoss: at(model.textLosses, 2 * pair, "row"),
      textTokens: at(model.textTokens, 2 * pair, "row"),
    };
  });
  return figuresOf(pairs, settings, math);
}
