/**
 * Losses of pairs of answers, as functions of four numbers: the log-probabilities of both answers by the model and by the reference.
 * Each gives its slopes too, so that the backward of the model begins from two numbers a pair.
 *
 * Names, and what β and label smoothing mean, are those of TRL's `DPOTrainer`.
 *
 * @module
 */
import type { PortableMath } from "../device/device.ts";

/**
 * Names of losses of a pair:
 * - `sigmoid`: direct preference optimization (Rafailov et al. 2023);
 * - `hinge`: SLiC (Zhao et al. 2023), with β as the inverse of the margin;
 * - `ipo`: identity preference optimization (Azar et al. 2023) of means over an answer's tokens;
 * - `robust`: sigmoid, corrected for a share of pairs the wrong way round (Chowdhury et al. 2024);
 * - `apo_zero`, `apo_down`: anchored preference optimization (D'Oosterlinck et al. 2024);
 * - `nca_pair`: noise contrastive alignment (Chen et al. 2024);
 * - `sppo_hard`: self-play preference optimization (Wu et al. 2024), of certain preferences;
 * - `sigmoid_norm`: sigmoid of means over an answer's tokens (Lambert et al. 2024).
 */
export const PAIR_LOSSES = [
  "sigmoid",
  "hinge",
  "ipo",
  "robust",
  "apo_zero",
  "apo_down",
  "nca_pair",
  "sppo_hard",
  "sigmoid_norm",
] as const;
/** One of {@link PAIR_LOSSES}. */
export type PairLossName = typeof PAIR_LOSSES[number];

/**
 * The loss of odds ratio preference optimization (Hong et al. 2024), of means over an answer's tokens and without a reference. A step adds
 * the mean loss of all tokens of the chosen samples to it.
 */
export const ODDS_RATIO = "orpo";

/** The loss of pairs, and its numbers. */
export interface PairLossSettings {
  readonly lossType: PairLossName | typeof ODDS_RATIO;
  /** Weight of the distance from the reference, above 0. */
  readonly beta: number;
  /** Share of pairs the wrong way round, from 0 up to 0.5. */
  readonly labelSmoothing: number;
}

/** One answer of a pair. */
export interface PairAnswer {
  /** Logarithm of its probability by the model, in nats: a sum over its tokens, or of {@link ODDS_RATIO} their mean. */
  readonly logProb: number;
  /** Likewise by the reference; 0 without one. */
  readonly reference: number;
  /** Number of its tokens. */
  readonly tokens: number;
}

/** The loss of a pair, and its slopes along the log-probabilities of both answers by the model. */
export interface PairLoss {
  readonly loss: number;
  readonly chosen: number;
  readonly rejected: number;
}

/** Functions that a loss is made of. */
interface Curves {
  /** The logistic function. */
  sigmoid(x: number): number;
  /** Its logarithm. */
  logSigmoid(x: number): number;
}

/** Numbers that a loss is a function of. */
interface LossInputs extends Omit<PairLossSettings, "lossType"> {
  /** Log-probability of the chosen answer by the model less that by the reference. */
  readonly chosen: number;
  /** Likewise of the rejected answer. */
  readonly rejected: number;
  readonly chosenTokens: number;
  readonly rejectedTokens: number;
}

/** The logistic function. */
export function sigmoidOf(x: number, { exp }: Pick<PortableMath, "exp">): number {
  const decay = exp(-Math.abs(x)); // of a number that is not positive, so that it cannot overflow
  return x >= 0 ? 1 / (1 + decay) : decay / (1 + decay);
}

function curvesOf(math: PortableMath): Curves {
  return {
    sigmoid: (x) => sigmoidOf(x, math),
    logSigmoid: (x) => Math.min(x, 0) - math.log(1 + math.exp(-Math.abs(x))),
  };
}

/** A loss of a difference of the two log-ratios, with its slope along the difference. */
function ofDifference({ loss, slope }: { readonly loss: number; readonly slope: number }, weights = [1, 1]): PairLoss {
  const [chosen = NaN, rejected = NaN] = weights;
  return { loss, chosen: slope * chosen, rejected: -slope * rejected };
}

/** −log σ(β d), and its slope along d. */
function logistic({ sigmoid, logSigmoid }: Curves, beta: number, d: number) {
  return { loss: -logSigmoid(beta * d), slope: -beta * sigmoid(-beta * d) };
}

/** Logarithm of the largest probability below 1 in float32: the odds of 1 are infinite, so it is taken for this. */
const NEARLY_CERTAIN = -(2 ** -24);

/** Logarithm of p / (1 − p), and its slope along the logarithm of p. */
function logOddsOf(logProb: number, { exp, log }: PortableMath): { readonly value: number; readonly slope: number } {
  const certain = Math.min(logProb, NEARLY_CERTAIN);
  const rest = 1 - exp(certain);
  return { value: certain - log(rest), slope: 1 / rest };
}

/** Logarithm of the ratio of the odds of two answers, which have these mean log-probabilities. */
export function logOddsRatio(chosen: number, rejected: number, math: PortableMath): number {
  return logOddsOf(chosen, math).value - logOddsOf(rejected, math).value;
}

/** The loss of the ratio of odds, without the loss of the chosen sample's tokens. */
function oddsRatioLoss({ beta, chosen, rejected }: LossInputs, curves: Curves, math: PortableMath): PairLoss {
  const [up, down] = [logOddsOf(chosen, math), logOddsOf(rejected, math)];
  const { loss, slope } = logistic(curves, 1, up.value - down.value);
  return ofDifference({ loss: beta * loss, slope: beta * slope }, [up.slope, down.slope]);
}

/** An answer as a loss takes it. @param logProb the sum over its tokens */
export function answerFor(
  { lossType }: Pick<PairLossSettings, "lossType">,
  { logProb, reference, tokens }: PairAnswer,
): PairAnswer {
  return lossType === ODDS_RATIO ? { logProb: logProb / tokens, reference: 0, tokens } : { logProb, reference, tokens };
}

type Loss = (inputs: LossInputs, curves: Curves) => PairLoss;

const LOSSES: Readonly<Record<PairLossName, Loss>> = {
  sigmoid: ({ beta, chosen, rejected }, curves) => ofDifference(logistic(curves, beta, chosen - rejected)),
  hinge: ({ beta, chosen, rejected }) => {
    const loss = Math.max(0, 1 - beta * (chosen - rejected));
    return ofDifference({ loss, slope: loss > 0 ? -beta : 0 });
  },
  ipo: ({ beta, chosen, rejected, chosenTokens, rejectedTokens }) => {
    const error = chosen / chosenTokens - rejected / rejectedTokens - 1 / (2 * beta);
    return ofDifference({ loss: error ** 2, slope: 2 * error }, [1 / chosenTokens, 1 / rejectedTokens]);
  },
  robust: ({ beta, chosen, rejected, labelSmoothing }, curves) => {
    const [right, wrong] = [logistic(curves, beta, chosen - rejected), logistic(curves, beta, rejected - chosen)];
    const mix = (a: number, b: number): number =>
      ((1 - labelSmoothing) * a - labelSmoothing * b) / (1 - 2 * labelSmoothing);
    return ofDifference({ loss: mix(right.loss, wrong.loss), slope: mix(right.slope, -wrong.slope) });
  },
  apo_zero: ({ beta, chosen, rejected }, { sigmoid }) => {
    const [up, down] = [sigmoid(beta * chosen), sigmoid(beta * rejected)];
    return { loss: 1 - up + down, chosen: -beta * up * (1 - up), rejected: beta * down * (1 - down) };
  },
  apo_down: ({ beta, chosen, rejected }, { sigmoid }) => {
    const [up, apart] = [sigmoid(beta * chosen), sigmoid(beta * (chosen - rejected))];
    const slope = beta * apart * (1 - apart);
    return { loss: up + 1 - apart, chosen: beta * up * (1 - up) - slope, rejected: slope };
  },
  nca_pair: ({ beta, chosen, rejected }, { sigmoid, logSigmoid }) => {
    const [up, down] = [beta * chosen, beta * rejected];
    return {
      loss: -logSigmoid(up) - 0.5 * logSigmoid(-up) - 0.5 * logSigmoid(-down),
      chosen: beta * (0.5 * sigmoid(up) - sigmoid(-up)),
      rejected: beta * 0.5 * sigmoid(down),
    };
  },
  sppo_hard: ({ beta, chosen, rejected }) => {
    const [up, down] = [chosen - 0.5 / beta, rejected + 0.5 / beta];
    return { loss: up ** 2 + down ** 2, chosen: 2 * up, rejected: 2 * down };
  },
  sigmoid_norm: ({ beta, chosen, rejected, chosenTokens, rejectedTokens }, curves) => {
    const weights = [1 / chosenTokens, 1 / rejectedTokens];
    return ofDifference(logistic(curves, beta, chosen / chosenTokens - rejected / rejectedTokens), weights);
  },
};

/**
 * The loss of a pair, in float64; the same bits under both runtimes.
 *
 * @param math functions whose results do not depend on the runtime
 */
export function pairLoss(
  { lossType, beta, labelSmoothing }: PairLossSettings,
  chosen: PairAnswer,
  rejected: PairAnswer,
  math: PortableMath,
): PairLoss {
  const inputs = {
    ...{ beta, labelSmoothing, chosenTokens: chosen.tokens, rejectedTokens: rejected.tokens },
    chosen: chosen.logProb - chosen.reference,
    rejected: rejected.logProb - rejected.reference,
  };
  const curves = curvesOf(math);
  return lossType === ODDS_RATIO ? oddsRatioLoss(inputs, curves, math) : LOSSES[lossType](inputs, curves);
}
